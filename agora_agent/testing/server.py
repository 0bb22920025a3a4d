"""A model server for tests and demos: Chat Completions over real HTTP, on 127.0.0.1, saying what it is told to.

``python -m agora_agent.testing.server --port 8099`` serves the demo's script.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from agora_agent.providers.scripted import Script
from agora_agent.testing.conversation import as_request, as_turn, violation
from agora_agent.testing.turns import Delay, Drop, End, Gate, HttpError, Item, Raw, Turn

__all__ = ["FakeOpenAI"]

_POLL_SECONDS = 0.01


class _Gone(Exception):
    """The client hung up."""


class FakeOpenAI:
    """Serves scripted turns, one for each request, and remembers the requests.

    A prompt that a strict server would refuse, above all one in which a call has no directly following result, is
    answered with 400 and kept in ``violations``.

    Args:
        turns: what to answer, in this order.
        script: what to answer to a request, in place of ``turns``: with a function of the conversation, a repeated
            step gets the same answer.
    """

    def __init__(
        self,
        turns: Iterable[Turn] = (),
        *,
        script: Callable[[dict[str, Any]], Turn] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._turns: list[Turn] = list(turns)
        self.script = script
        #: Bodies of the requests, in the order of their arrival.
        self.requests: list[dict[str, Any]] = []
        #: Their headers, with names in lower case.
        self.headers: list[dict[str, str]] = []
        self.violations: list[str] = []
        #: Set when a client hung up in the middle of an answer.
        self.client_gone = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server((host, port), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="fake-openai", daemon=True
        )

    @property
    def base_url(self) -> str:
        """What a client is given as base URL."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    def turn(self, *items: Item) -> Self:
        """Answer one more request with ``items``."""
        with self._lock:
            self._turns.append(items)
        return self

    def start(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End all answers and close the port."""
        self._stopping.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, body: Any, headers: dict[str, str]) -> Turn:
        fault = violation(body)
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            if not fault and self.script is None and not self._turns:
                fault = "no turn is left for this request"
            if fault:
                self.violations.append(fault)
                return [HttpError(400, {"error": {"message": fault, "type": "invalid_request_error"}})]
            if self.script is None:
                return self._turns.pop(0)
        return self.script(body)

    def _pause(self, seconds: float | None, event: threading.Event, client: socket.socket) -> None:
        """Wait for the event, the time, the end of the server, or the client's hanging up."""
        until = None if seconds is None else time.monotonic() + seconds
        while not event.wait(_POLL_SECONDS) and not self._stopping.is_set():
            if until is not None and time.monotonic() >= until:
                return
            readable, _, _ = select.select([client], [], [], 0)
            if readable and not client.recv(1, socket.MSG_PEEK):
                raise _Gone


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], fake: FakeOpenAI) -> None:
        self.fake = fake
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            self.fake.violations.append(f"the server failed: {error!r}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_POST(self) -> None:
        fake = self.server.fake
        self.close_connection = True
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.path.endswith("/chat/completions"):
            self._whole(HttpError(404, {"error": {"message": f"no such path: {self.path}"}}))
            return
        try:
            body = json.loads(content)
        except ValueError:
            self._whole(HttpError(400, {"error": {"message": "the body is not JSON"}}))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self._turn(fake, fake._answer(body, headers))
        except (_Gone, ConnectionError):
            fake.client_gone.set()

    def _turn(self, fake: FakeOpenAI, turn: Turn) -> None:
        started = False
        for item in turn:
            match item:
                case Delay(seconds):
                    fake._pause(seconds, threading.Event(), self.connection)
                case Gate(event, reached):
                    reached.set()
                    fake._pause(None, event, self.connection)
                case HttpError():
                    self._whole(item)
                    return
                case Drop():
                    # Both directions at once: the client sees a chunked body without its end.
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                case _:
                    started = started or self._begin()
                    if isinstance(item, End):
                        break
                    self._chunk(item.data if isinstance(item, Raw) else _event(item))
        else:
            started = started or self._begin()
            self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self) -> bool:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        return True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _whole(self, answer: HttpError) -> None:
        body = answer.body
        data = (
            body if isinstance(body, bytes) else json.dumps(body or {"error": {"message": "failed"}}).encode()
        )
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _event(chunk: dict[str, Any]) -> bytes:
    whole = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "model": "fake-model", **chunk}
    return f"data: {json.dumps(whole)}\n\n".encode()


def scripted(script: Script, *, word_delay: float = 0.0) -> Callable[[dict[str, Any]], Turn]:
    """A script of the scripted model as the ``script`` of a server."""

    def answer(body: dict[str, Any]) -> Turn:
        request = as_request(body)
        return as_turn(script(request), request, word_delay)

    return answer


def main(arguments: list[str] | None = None) -> None:
    """Serve the demo's script until interrupted."""
    from agora_agent.providers.shop import shop_script

    parser = argparse.ArgumentParser(prog="python -m agora_agent.testing.server", description=__doc__)
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--token-delay", type=float, default=0.02, help="seconds between two words")
    options = parser.parse_args(arguments)
    server = FakeOpenAI(script=scripted(shop_script, word_delay=options.token_delay), port=options.port)
    sys.stdout.write(f"Serving the offline demo model at {server.base_url}\n")
    sys.stdout.flush()
    with server, contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


if __name__ == "__main__":
    main()
