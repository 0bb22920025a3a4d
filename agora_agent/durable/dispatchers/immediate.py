"""For tests: a hint is worked off in the thread that sends it, without leases, threads or durable transactions."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

Kind = Literal["run", "task"]


class ImmediateDispatcher:
    """Hints come after a commit. Inside a ``TestCase`` nothing commits: call ``Engine.run_due`` there."""

    embedded = False
    pulls = True
    immediate = True

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._local = threading.local()

    def bind(self, engine: Engine) -> None:
        """Remember who executes."""
        self._engine = engine

    def hint(self, kind: Kind, row_id: uuid.UUID, queue: str) -> None:
        """Execute now; a hint that comes up meanwhile waits its turn, so that drives do not nest."""
        if self._engine is None:
            return
        waiting: deque[tuple[Kind, uuid.UUID]] | None = getattr(self._local, "waiting", None)
        if waiting is not None:
            waiting.append((kind, row_id))
            return
        self._local.waiting = waiting = deque([(kind, row_id)])
        try:
            while waiting:
                self._engine.execute(*waiting.popleft())
        finally:
            self._local.waiting = None
