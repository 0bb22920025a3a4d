"""Server-sent events as bytes, by the WHATWG grammar: nothing in a payload can end a line early."""

from __future__ import annotations

import re
from typing import Any

from agora_agent.streaming.wire import dumps

KEEP_ALIVE = b": keep-alive\n\n"

_EVENT_NAME = re.compile(r"[A-Za-z0-9_-]*")


def encode(event: str, data: Any, seq: int | None = None) -> bytes:
    """One frame. ``event`` empty: an unnamed one. ``seq`` None: an unnumbered one.

    Raises:
        ValueError: an event name that is more than letters, digits, ``_`` and ``-``.
    """
    if not _EVENT_NAME.fullmatch(event):
        raise ValueError(f"{event!r} cannot be the name of an event")
    lines = []
    if seq is not None:
        lines.append(f"id: {int(seq)}\n")
    if event:
        lines.append(f"event: {event}\n")
    lines.append(f"data: {dumps(data)}\n\n")
    return "".join(lines).encode("utf-8", "replace")
