"""Rights as they are where they are written: a replica may not have heard yet that one was taken away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import router

_asked: ContextVar[bool] = ContextVar("agora_agent_primary", default=False)
_lock = threading.Lock()


@contextmanager
def primary() -> Iterator[None]:
    """Inside, everything is read from the database that is written, whatever the project's routers say.

    Authentication backends, permissions and groups belong to Django or to the project: they choose no database, so
    the choice is made for them here. Rows that are lazily loaded must be loaded inside.
    """
    _take_precedence()
    before = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(before)


class _PrimaryReads:
    """A database router without an opinion, except inside :func:`primary`."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return router.db_for_write(model, **hints) if _asked.get() else None


_reads = _PrimaryReads()


def _take_precedence() -> None:
    """The project's own routers come after ours. Without any, there is nothing to precede."""
    routers: list[Any] = router.routers
    if routers and routers[0] is not _reads:
        with _lock:
            others = [other for other in router.routers if other is not _reads]
            router.routers = [_reads, *others]
