"""The AgentRunner protocol and the lazy way to the one in use."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from agora_agent.governance.principal import Principal

_RESOLVER = "agora_agent.runners.resolver"


@dataclass(frozen=True)
class AgentRunInput:
    """A message for an agent. ``user`` is the actor; ids and state are the server's own."""

    agent: str
    message: str
    user: Any
    tenant: str = ""
    thread_id: uuid.UUID | None = None
    persona: str = ""
    page_context: dict[str, Any] | None = None
    #: References of people beside the actor who count as requesters (impersonator, on behalf of).
    requesters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """A reply to an approval as a caller of ``signal`` may send it. It only wakes: the stored row decides."""

    approved: bool
    reason: str = ""


@dataclass(frozen=True)
class ElicitationReply:
    """A reply to a question set as a caller of ``signal`` may send it. It only wakes: the stored row decides."""

    answers: Mapping[str, list[str]] = field(default_factory=dict)
    skipped: bool = False


class AgentRunner(Protocol):
    """Runs turns. Both implementations keep the same rows, frames and decisions."""

    durable: bool

    def start(self, run_input: AgentRunInput, *, run_id: uuid.UUID | None = None) -> uuid.UUID:
        """Store the run and return its id at once; the answer goes to the run's stream.

        Raises:
            NotVisible: the thread is not the actor's.
            RunActive: the thread has a live run.
            InvalidInput: unknown agent or persona, or the actor may not start it.
            LimitExceeded: the actor holds too many runs.
            Busy: this process executes as many inline runs as it may.
        """

    def is_run_active(self, run_id: uuid.UUID) -> bool:
        """True while the run has not ended."""

    def signal(self, run_id: uuid.UUID, tool_call_id: str, reply: Decision | ElicitationReply) -> None:
        """Wake what waits on this call. Never evidence: without a decision row the run waits on."""

    def wake(self, run_id: uuid.UUID, key: str, dedupe: str) -> None:
        """Wake the wait on ``key`` once the open transaction, which holds the decision, has committed."""

    def oldest_ready_seconds(self) -> float | None:
        """How long the run that has waited longest for a process has waited; None if none waits."""

    def cancel(
        self, run_id: uuid.UUID, *, by: str = "", reason: str = "", principal: Principal | None = None
    ) -> bool:
        """Stop the run and its children. Asked again while it stops, nothing changes: the first who asked stands.

        Args:
            run_id: the run.
            by: who asks, as ``kind:id``, for a caller without a principal.
            reason: their words, for operators of the engine; never in the record.
            principal: who asks, as a door knows them.

        Returns:
            False if the run had ended already.
        """


class DurableState(NamedTuple):
    """Whether durable runs were asked for, whether they are on, and why not."""

    asked: bool
    on: bool
    reason: str


def get(durable: bool | None = None) -> AgentRunner:
    """The runner for new runs, or the one that an existing run's row names with ``durable``.

    Raises:
        ConfigurationError: the durable runner is required and cannot be wired.
    """
    runner: AgentRunner = import_string(f"{_RESOLVER}.get_runner")(durable)
    return runner


def durable_state() -> DurableState:
    """What ``AGORA_AGENT["DURABLE"]`` asked for and what is really on."""
    state: DurableState = import_string(f"{_RESOLVER}.durable_state")()
    return state
