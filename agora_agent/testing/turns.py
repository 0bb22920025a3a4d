"""What a fake model server sends: chunks of an answer, and the ways in which an answer goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Chunk = dict[str, Any]


@dataclass(frozen=True)
class Delay:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Gate:
    """Wait until a test opens it; ``reached`` tells the test that the server is here."""

    event: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Let the answer go on."""
        self.event.set()


@dataclass(frozen=True)
class Drop:
    """Close the connection in the middle of the answer."""


@dataclass(frozen=True)
class End:
    """End the answer here, without ``[DONE]``."""


@dataclass(frozen=True)
class Raw:
    """These bytes of the event stream, as they are."""

    data: bytes


@dataclass(frozen=True)
class HttpError:
    """An answer that is no stream. Stands alone in its turn, or after a gate or a delay."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


Item = Chunk | Delay | Gate | Drop | End | Raw | HttpError
Turn = Sequence[Item]


def _choice(delta: Any, finish_reason: str | None = None) -> Chunk:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def text(content: str) -> Chunk:
    """A piece of the answer's text."""
    return _choice({"content": content})


def tool_call(index: int | None, id: str | None, name: str | None, args: Any = "") -> Chunk:  # noqa: A002
    """A fragment of a tool call. ``index`` and ``id`` that are ``None`` are left out."""
    call: dict[str, Any] = {"type": "function", "function": {"arguments": args}}
    if name is not None:
        call["function"]["name"] = name
    if index is not None:
        call["index"] = index
    if id is not None:
        call["id"] = id
    return _choice({"tool_calls": [call]})


def finish(reason: str = "stop") -> Chunk:
    """The end of the answer."""
    return _choice({}, reason)


def usage(prompt: int | None, completion: int | None, **more: Any) -> Chunk:
    """Token counts."""
    total = (prompt or 0) + (completion or 0)
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return {"choices": [], "usage": {**counts, **more}}


def delay(seconds: float) -> Delay:
    """Wait."""
    return Delay(seconds)


def gate(event: threading.Event | None = None) -> Gate:
    """Wait until the event is set."""
    return Gate(event or threading.Event())


def drop() -> Drop:
    """Close the connection in the middle of the answer."""
    return Drop()


def end() -> End:
    """End the answer here, without ``[DONE]``."""
    return End()


def raw(data: bytes) -> Raw:
    """These bytes of the event stream."""
    return Raw(data)


def http_error(status: int, body: Any = None, **headers: str) -> HttpError:
    """Answer with this status; header names are written with underscores."""
    return HttpError(status, body, {name.replace("_", "-"): value for name, value in headers.items()})
