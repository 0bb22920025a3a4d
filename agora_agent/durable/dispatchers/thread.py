"""The default: threads of the serving process drive runs. No broker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine


class ThreadDispatcher:
    """Hints go to the pool that ``Engine.serve`` started here; without one the row waits for a process with one."""

    embedded = True
    pulls = True
    immediate = False

    def bind(self, engine: Engine) -> None:
        """Nothing to remember: the engine hands hints to its own pool first."""

    def hint(self, kind: Literal["run", "task"], row_id: uuid.UUID, queue: str) -> None:
        """No pool in this process: others poll."""
