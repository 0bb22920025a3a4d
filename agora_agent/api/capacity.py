"""How many streams this process and each actor hold open."""

from __future__ import annotations

import threading
from collections import Counter

from agora_agent.conf import agora_settings
from agora_agent.exceptions import Busy, LimitExceeded
from agora_agent.governance.actors import Actor

_RETRY_SECONDS = 5

_lock = threading.Lock()
_held: Counter[tuple[str, str]] = Counter()


class Lease:
    """The right to hold one stream open; given back once, however often it is released."""

    def __init__(self, actor: tuple[str, str]) -> None:
        self._actor: tuple[str, str] | None = actor

    def release(self) -> None:
        """Give it back. From any thread."""
        with _lock:
            actor, self._actor = self._actor, None
            if actor is not None:
                _held[actor] -= 1
                if not _held[actor]:
                    del _held[actor]


def acquire(actor: Actor) -> Lease:
    """A lease for one more stream of ``actor``.

    Raises:
        Busy: this process holds as many as it may.
        LimitExceeded: the actor does.
    """
    key = (actor.tenant, actor.ref)
    with _lock:
        if _held.total() >= agora_settings.STREAM_MAX_PER_PROCESS:
            raise Busy("This server holds as many streams as it can.", retryAfter=_RETRY_SECONDS)
        if _held[key] >= agora_settings.STREAM_MAX_PER_ACTOR:
            raise LimitExceeded(
                f"You have {_held[key]} streams open: close one first.", retryAfter=_RETRY_SECONDS
            )
        _held[key] += 1
    return Lease(key)


def held() -> int:
    """How many streams are open in this process."""
    with _lock:
        return _held.total()
