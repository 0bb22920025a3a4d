"""The seam between the loop and a runner: what the loop may ask for, and the values that cross."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from agora_agent.ids import child_id


@dataclass(frozen=True)
class TurnInput:
    """What a run was started with. Everything here is journaled with the start and never read again elsewhere."""

    run_id: uuid.UUID
    thread_id: uuid.UUID
    #: The top-level run: its stream carries this run's frames.
    root_id: uuid.UUID
    agent: str
    persona: str
    message: str
    user_id: str
    tenant: str = ""
    page_context: dict[str, Any] | None = None
    depth: int = 0
    #: The agents from the top-level run down to this one.
    path: tuple[str, ...] = ()
    max_steps: int = 8
    max_tool_calls: int = 32
    history_messages: int = 50
    #: The UTC day of the start, for everything that is counted by day.
    day: str = ""

    def pack(self) -> dict[str, Any]:
        """As journaled."""
        return {**self.__dict__, "path": list(self.path)}

    def delegated(self, run_id: uuid.UUID, agent: str, task: str, max_steps: int) -> TurnInput:
        """The input of the child run ``run_id`` that this turn hands ``task`` to."""
        return replace(
            self,
            run_id=run_id,
            thread_id=child_id(run_id, "thread"),
            agent=agent,
            persona="",
            message=task,
            max_steps=max_steps,
            depth=self.depth + 1,
            path=(*self.path, agent),
        )

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> TurnInput:
        """From the journal. Members that a later release added keep their defaults."""
        known = {name: packed[name] for name in cls.__dataclass_fields__ if name in packed}
        return cls(**{**known, "path": tuple(packed.get("path", ()))})


@dataclass(frozen=True)
class LocalStep:
    """A checkpoint with effects of its own: ``commit`` writes them in the transaction that records it.

    ``prepare`` runs host code before the transaction begins; its result is handed to ``commit``, which only writes
    and may be repeated when the database asks for it.
    """

    name: str
    commit: Callable[[Any], Any]
    prepare: Callable[[], Any] | None = None


@dataclass(frozen=True)
class ToolStepSpec:
    """A tool call that is to be executed now."""

    name: str
    call_pk: uuid.UUID
    queue: str = "default"
    at_most_once: bool = False


class StepOutcome(NamedTuple):
    """How a dispatched step ended. ``code``: "" | "step_failed" | "in_doubt" | "lost"."""

    ok: bool
    value: Any
    code: str = ""
    message: str = ""


class ChildOutcome(NamedTuple):
    """How a delegated run ended. ``status`` is the run's, or "refused": it was not started, ``text`` says why."""

    status: str
    text: str
    code: str = ""


class WaitingCall(NamedTuple):
    """A call that is parked on a person."""

    pk: uuid.UUID
    call_id: str
    #: ``tool:<runId>:<callId>``, later rounds with their number.
    key: str
    round: int


Frame = tuple[str, dict[str, Any]]


class RunSink(Protocol):
    """Where a run's frames go. A delegated run writes into its ancestor's and cannot end it."""

    def append(self, *frames: Frame) -> None:
        """Number and store ``frames`` in the open transaction; readers are told after its commit."""


@dataclass(frozen=True)
class Ending:
    """How a run ends. ``status`` is one of completed, failed, cancelled."""

    status: str
    finish_reason: str = ""
    answer: str = ""
    code: str = ""
    detail: str = ""
    #: Who stopped it, for a cancelled run.
    by: str = ""


@dataclass(frozen=True)
class Assessment:
    """What the gates say about one call. ``verdict``: run | ask | refuse."""

    verdict: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    identity: str = ""
    digest: str = ""
    module: str = ""
    tier: str = ""
    approver: str = ""
    expires_seconds: float | None = None
    preview: str = ""
    #: Names of people who may decide, for the card; empty when they are many or the requester decides.
    waiting_for: tuple[str, ...] = ()
    at_most_once: bool = False
    queue: str = "default"
    #: For a delegation: how many steps the other agent may take.
    max_steps: int = 0


@dataclass(frozen=True)
class AgentLoopDeps:
    """What the loop uses and does not import: the people's and the operators' side of a turn."""

    #: Runs the gates on one call, in host code, before a transaction: (input, call as offered, round).
    assess: Callable[[TurnInput, dict[str, Any]], Assessment]
    #: Settles the run row, its calls, its thread and its stream in the open transaction; False: already ended.
    settle: Callable[[uuid.UUID, Ending], bool]
    #: Appends an audit entry to the run's chain in the open transaction: (run, action, content).
    audit: Callable[[uuid.UUID, str, dict[str, Any]], None]
    #: Closes the usage row of a model step in the open transaction: (run, step, result of the step).
    record_usage: Callable[[uuid.UUID, int, dict[str, Any]], None]


class AgentLoopHooks(Protocol):
    """What a runner makes of the loop's requests. Every one may raise control flow, which nobody catches."""

    def group(self, steps: Sequence[LocalStep]) -> list[Any]:
        """Execute and record the steps together or not at all."""

    def finish(self, step: LocalStep, ending: Ending) -> None:
        """The last checkpoint of the run: its effects and the run's end are one commit."""

    def model_step(self, name: str, request: dict[str, Any]) -> StepOutcome:
        """Ask the model."""

    def tool_step(self, spec: ToolStepSpec) -> StepOutcome:
        """Execute one tool call."""

    def parallel(self, specs: Sequence[ToolStepSpec]) -> list[StepOutcome]:
        """Execute tool calls side by side; return when all have settled, in the order given."""

    def await_approval(self, call: WaitingCall) -> dict[str, Any]:
        """Wait for the decision row of this round and return it."""

    def await_answers(self, call: WaitingCall) -> dict[str, Any]:
        """Wait for the reply to a question set; the same wait under the same key."""

    def await_settlement(self, call: WaitingCall) -> dict[str, Any]:
        """Wait for a person to settle a call whose outcome is unknown."""

    def run_agent(self, name: str, agent: str, task: str, max_steps: int, call_pk: uuid.UUID) -> ChildOutcome:
        """Run another agent as a tracked child run and wait for its end."""

    def open_sink(self) -> RunSink:
        """Where this run's frames go."""

    def patched(self, patch_id: str) -> bool:
        """False for a run that was recorded before the change of shape named ``patch_id``."""

    def check_cancelled(self) -> None:
        """Raise RunCancelled if the run was asked to stop."""
