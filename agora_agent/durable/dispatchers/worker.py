"""Nothing is sent: ``manage.py agora_worker`` polls."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine


class WorkerDispatcher:
    """For web processes that only start, decide and show runs."""

    embedded = False
    pulls = True
    immediate = False

    def bind(self, engine: Engine) -> None:
        """Nothing to remember."""

    def hint(self, kind: Literal["run", "task"], row_id: uuid.UUID, queue: str) -> None:
        """The worker looks by itself."""
