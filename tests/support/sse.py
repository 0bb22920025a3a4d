"""Reads a server-sent event stream byte for byte as the WHATWG standard says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Event:
    """One dispatched event. ``id`` is what this event itself carried, ``last_id`` what the reader would resume from."""

    event: str
    data: Any
    id: str | None
    last_id: str


class Parser:
    """Feed it bytes, however they were cut; it yields events and collects comments."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.last_id = ""
        self._rest = b""
        self._reset()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        self._rest += chunk
        # A CR at the very end may be the first half of CRLF.
        ready = self._rest[:-1] if self._rest.endswith(b"\r") else self._rest
        cut = max(ready.rfind(b"\n"), ready.rfind(b"\r")) + 1
        lines, self._rest = self._rest[:cut], self._rest[cut:]
        for line in _LINE_END.split(lines.decode("utf-8"))[:-1]:
            event = self._line(line)
            if event is not None:
                yield event

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            self.comments.append(line[1:].strip())
            return None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self._id = self.last_id = value
        return None

    def _dispatch(self) -> Event | None:
        event = None
        if self._data:
            data = json.loads("\n".join(self._data), parse_constant=_refuse)
            event = Event(self._event, data, self._id, self.last_id)
        self._reset()
        return event

    def _reset(self) -> None:
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def parse(chunks: Iterable[bytes] | bytes) -> list[Event]:
    """All events of a stream that has ended."""
    parser = Parser()
    return [
        event for chunk in ([chunks] if isinstance(chunks, bytes) else chunks) for event in parser.feed(chunk)
    ]
