"""Real HTTP servers for tests: uvicorn in a thread of this process, or daphne and uvicorn as processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import uvicorn
from django.core.asgi import get_asgi_application
from django.db import connection

ROOT = Path(__file__).resolve().parents[2]
SERVERS = {
    "daphne": ["daphne", "-b", "127.0.0.1", "-p", "{port}", "tests.support.asgi:application"],
    "uvicorn": [
        *["uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--lifespan", "off", "--ws", "none"],
        "tests.support.asgi:application",
    ],
}


def database_url() -> str:
    """``DATABASE_URL`` of the database that the running test writes to."""
    values = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{values['NAME']}"
    scheme = {"postgresql": "postgres", "mysql": "mysql"}[connection.vendor]
    password = f":{quote(values['PASSWORD'], safe='')}" if values["PASSWORD"] else ""
    port = f":{values['PORT']}" if values["PORT"] else ""
    return f"{scheme}://{quote(values['USER'], safe='')}{password}@{values['HOST']}{port}/{values['NAME']}"


def environment(**extra: str) -> dict[str, str]:
    """The environment of a process that works on the running test's database."""
    return {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        **extra,
    }


@contextmanager
def in_thread() -> Iterator[str]:
    """uvicorn in this process, with the settings as they are now; its address."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        get_asgi_application(), lifespan="off", ws="none", log_level="warning", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    _wait(lambda: server.started, "uvicorn in a thread")
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


@contextmanager
def as_process(name: str, **extra: str) -> Iterator[str]:
    """A server of :data:`SERVERS` as a process of its own; its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [part.format(port=port) for part in SERVERS[name]]
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=environment(**extra))
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, f"{name} has ended"
        try:
            return httpx.get(f"{url}/agent/health").status_code == 401
        except httpx.TransportError:
            return False

    try:
        _wait(answers, name)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(condition: Any, what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not start"
        time.sleep(0.02)
