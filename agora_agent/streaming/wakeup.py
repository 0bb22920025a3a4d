"""Tells whoever follows a stream, in this process and in others, that it has moved. Never fails its caller."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from agora_agent.streaming import layer

logger = logging.getLogger("agora_agent.streaming")

_listeners: list[Callable[[uuid.UUID], None]] = []


def on_wake(listener: Callable[[uuid.UUID], None]) -> None:
    """Call ``listener`` with the id of each stream that moves; from any thread, so it must return at once."""
    if listener not in _listeners:
        _listeners.append(listener)


def wake_local(stream_id: uuid.UUID) -> None:
    """Tell this process only."""
    for listener in _listeners:
        try:
            listener(stream_id)
        except Exception:
            logger.exception("a listener of stream %s failed", stream_id)


def notify(stream_id: uuid.UUID) -> None:
    """Tell this process and, where a channel layer connects them, the others. From any thread."""
    wake_local(stream_id)
    layer.bridge.tell(stream_id)
