"""What a dispatcher is."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine


class Dispatcher(Protocol):
    """Sends hints. A lost or doubled one changes nothing but the time that something takes."""

    #: A process that serves web requests also drives runs, in threads.
    embedded: bool
    #: Processes look for due rows themselves, so the sweeper sends no hints again.
    pulls: bool
    #: Hints are worked off in the thread that sends them: for tests.
    immediate: bool

    def bind(self, engine: Engine) -> None:
        """Called once, by the engine that uses this dispatcher."""

    def hint(self, kind: Literal["run", "task"], row_id: uuid.UUID, queue: str) -> None:
        """Tell somebody that this row may be due. Called after the commit; must not block for long."""
