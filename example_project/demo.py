"""``make demo``: one server on a seeded shop, and whatever else the chosen dispatcher needs. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
START_SECONDS = 60
STOP_SECONDS = 10
# What drives the runs where the server does not.
WORKERS = {
    "worker": ["manage.py", "agora_worker"],
    "django_q": ["manage.py", "qcluster"],
}
PR_SET_PDEATHSIG = 1


class Refused(Exception):
    """The demo cannot start; the message says why and what to do."""


def python(*arguments: str) -> list[str]:
    """A command line of this interpreter."""
    return [sys.executable, *arguments]


def die_with_parent() -> None:
    """On Linux, ask the kernel for SIGTERM when the starting process goes, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def spawn(command: list[str], **options: object) -> subprocess.Popen[bytes]:
    """Start a child in the example project's folder that does not outlive this process."""
    return subprocess.Popen(command, cwd=HERE, preexec_fn=die_with_parent, **options)  # type: ignore[call-overload]


def check_port(host: str, port: int) -> None:
    """Refuse a port that somebody else listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Refused(
                f"Port {port} cannot be used ({error.strerror}). Choose another: make demo PORT={port + 1}"
            ) from error


def prepare() -> None:
    """Bring the database up to date and fill in what is missing."""
    command = python("manage.py", "seed_shop", "--migrate", "--verbosity", "0")
    if subprocess.run(command, cwd=HERE, check=False).returncode:
        raise Refused("The database could not be prepared: see above.")


def server(host: str, port: int) -> subprocess.Popen[bytes]:
    """Daphne, quiet."""
    return spawn(
        python("-m", "daphne", "-v", "0", "-b", host, "-p", str(port), "backoffice.asgi:application")
    )


def is_listening(base: str) -> bool:
    """True once the server answers a request."""
    try:
        with urllib.request.urlopen(f"{base}/login", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_listening(base: str, process: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    """Return when the server answers; refuse when it has ended or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not stopping.is_set() and not is_listening(base):
        if process.poll() is not None:
            raise Refused(f"The server ended with status {process.returncode}: see above.")
        if time.monotonic() > deadline:
            raise Refused(f"The server did not answer within {START_SECONDS} seconds.")
        stopping.wait(0.1)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask every child to stop, wait, then insist."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run() -> int:
    """Start everything, say where it is, wait until told to stop."""
    host = os.environ.get("HOST") or "127.0.0.1"
    given = os.environ.get("PORT") or "8000"
    if not given.isdigit() or not 0 < int(given) < 65536:
        raise Refused(f"PORT must be a number between 1 and 65535, not {given!r}.")
    port = int(given)
    dispatcher = os.environ.get("AGORA_DISPATCHER") or "thread"

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # nohup
        signal.signal(number, lambda *_: stopping.set())

    check_port(host, port)
    prepare()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        if not stopping.is_set():
            processes.append(server(host, port))
            if dispatcher in WORKERS:
                processes.append(spawn(python(*WORKERS[dispatcher]), stdout=subprocess.DEVNULL))
            shown = "localhost" if host in ("127.0.0.1", "0.0.0.0") else host
            base = f"http://{shown}:{port}"
            wait_until_listening(
                f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}", processes[0], stopping
            )
        if not stopping.is_set():
            print(f"Chat:     {base}/")
            print(f"Admin:    {base}/admin/")
            print("Sign in:  alice, bob (customers), carol (approves), dave (audits), admin; password demo")
            sys.stdout.flush()
        while not stopping.wait(0.5):
            ended = next((process for process in processes if process.poll() is not None), None)
            if ended is not None:
                # A Ctrl-C at the terminal reaches the children too, perhaps before it reaches us.
                if stopping.wait(0.5):
                    break
                raise Refused(f"{' '.join(map(str, ended.args[1:4]))} ended with status {ended.returncode}.")
    finally:
        stop(processes)
    return 0


if __name__ == "__main__":
    if "--with-parent" in sys.argv:
        die_with_parent()
    try:
        sys.exit(run())
    except Refused as refusal:
        print(f"demo: {refusal}", file=sys.stderr)
        sys.exit(1)
