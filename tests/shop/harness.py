"""The shop as somebody outside sees it: a process, a port, HTTP."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "example_project"
PATIENCE = 60


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def fresh_database(folder: Path) -> Iterator[str]:
    """The URL of an empty database: a file, or one more on the server that ``DATABASE_URL`` names."""
    url = os.environ.get("DATABASE_URL", "")
    if not url or url.startswith("sqlite"):
        yield f"sqlite:///{folder / 'shop.sqlite3'}"
        return
    name = f"agora_shop_{uuid4().hex[:12]}"
    _admin_sql(url, f"CREATE DATABASE {name}")
    try:
        yield f"{url.rpartition('/')[0]}/{name}"
    finally:
        _admin_sql(url, f"DROP DATABASE {name}" + (" WITH (FORCE)" if url.startswith("postgres") else ""))


def _admin_sql(url: str, statement: str) -> None:
    # In a process of its own: the suite's connections belong to the suite's database.
    code = (
        "import sys, django; from django.conf import settings; import dj_database_url as d\n"
        "settings.configure(DATABASES={'default': d.parse(sys.argv[1])}); django.setup()\n"
        "from django.db import connection\n"
        "with connection._nodb_cursor() as cursor: cursor.execute(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, url, statement], check=True, capture_output=True, text=True)


@dataclass
class Frame:
    """One server-sent event."""

    id: int | None
    event: str
    data: dict[str, Any]


@dataclass
class Answer:
    """A response that was read to its end."""

    status: int
    body: Any
    headers: dict[str, str]


def read_frames(response: IO[bytes]) -> Iterator[Frame]:
    """The frames of an open stream."""
    number: int | None = None
    event, data = "", []
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data:
                yield Frame(number, event, json.loads("\n".join(data)))
            number, event, data = None, "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            number = int(value)
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)


@dataclass
class Shop:
    """``demo.py`` in a process group of its own."""

    database_url: str
    state: Path
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    #: What the demo printed before it was ready.
    banner: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What the shop's processes see."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENAI_", "AGORA_", "SHOP_", "DJANGO_", "PYTEST_", "COV_"))
        }
        return {
            **inherited,
            "DATABASE_URL": self.database_url,
            "SHOP_STATE_DIR": str(self.state),
            "PORT": str(self.port),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }

    def spawn(self) -> subprocess.Popen[str]:
        """Start ``demo.py`` without waiting for it."""
        return subprocess.Popen(
            [sys.executable, str(PROJECT / "demo.py")],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self) -> None:
        """Start, and return when it has said that it is ready."""
        self.close()
        self.process = self.spawn()
        assert self.process.stdout is not None
        guard = threading.Timer(PATIENCE, self.kill)
        guard.start()
        try:
            self.banner = [self.process.stdout.readline() for _ in range(3)]
        finally:
            guard.cancel()
        if not all(self.banner):
            self.process.wait(10)
            assert self.process.stderr is not None
            raise AssertionError(f"the demo did not start:\n{self.process.stderr.read()}")

    def stop(self) -> int:
        """SIGTERM to the demo alone; its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def close(self) -> None:
        """Whatever state it is in, end it and its pipes."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def is_listening(self) -> bool:
        """True if something accepts connections on the port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def manage(self, *arguments: str) -> str:
        """The output of a management command."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=PROJECT,
            env=self.environ,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self, model: str) -> list[dict[str, Any]]:
        """The rows of one of the shop's models, from the database."""
        dumped: list[dict[str, Any]] = json.loads(self.manage("dumpdata", f"shop.{model}"))
        return [row["fields"] for row in dumped]

    def open(self, user: str | None, path: str, body: Any = None, accept: str = "application/json") -> Any:
        """An open response; raises ``HTTPError`` for a refusal."""
        headers = {"Accept": accept}
        if user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:demo".encode()).decode()
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.base + path, data=data, headers=headers)
        return urllib.request.urlopen(request, timeout=PATIENCE)

    def call(self, user: str | None, path: str, body: Any = None) -> Answer:
        """Status and body of one request."""
        try:
            with self.open(user, path, body) as response:
                status, content, headers = response.status, response.read(), dict(response.headers)
        except urllib.error.HTTPError as error:
            with error:
                status, content, headers = error.code, error.read(), dict(error.headers)
        try:
            return Answer(status, json.loads(content), headers)
        except ValueError:
            return Answer(status, content.decode(errors="replace"), headers)

    def say(
        self, user: str, message: str, until: tuple[str, ...] = ("done", "error"), **extra: Any
    ) -> list[Frame]:
        """Send a message and read its stream up to a frame of one of the named events."""
        with self.open(
            user, "/agent/chat", {"message": message, "agent": "support", **extra}, "text/event-stream"
        ) as r:
            return read_until(r, until)

    def follow(
        self, user: str, run_id: str, after: int, until: tuple[str, ...] = ("done", "error")
    ) -> list[Frame]:
        """Read a run's stream from after a frame."""
        with self.open(
            user, f"/agent/chat/{run_id}/stream?after={after}", accept="text/event-stream"
        ) as response:
            return read_until(response, until)


def read_until(response: IO[bytes], events: tuple[str, ...]) -> list[Frame]:
    """The frames up to and with the first of one of these events."""
    got: list[Frame] = []
    for frame in read_frames(response):
        got.append(frame)
        if frame.event in events:
            break
    return got


def text_of(frames: list[Frame]) -> str:
    """The answer's text."""
    return "".join(frame.data["delta"] for frame in frames if not frame.event)
