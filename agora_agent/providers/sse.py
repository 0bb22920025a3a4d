"""Server-sent events as they arrive: bytes to (event, data)."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import NamedTuple


class ServerEvent(NamedTuple):
    """One event: its name ("" if it has none) and its data lines."""

    event: str
    data: str


class EventParser:
    """Only CR and LF end a line: a U+2028 inside a model's text does not, unlike for ``str.splitlines``."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that ``chunk`` completes."""
        text = self._rest + self._decode(chunk)
        # A CR at the very end may be the first half of CRLF.
        held = "\r" if text.endswith("\r") else ""
        text = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        self._rest = rest + held
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[ServerEvent]:
        """The event that lacks its empty line, if any."""
        for line in (self._rest.removesuffix("\r"), ""):
            yield from self._line(line)
        self._rest = ""

    def _line(self, line: str) -> Iterator[ServerEvent]:
        if not line:
            if self._data:
                yield ServerEvent(self._event, "\n".join(self._data))
            self._event, self._data = "", []
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
