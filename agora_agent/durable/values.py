"""The values that travel between a workflow, the engine and its host."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, runtime_checkable

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import AgoraError

Mode = Literal["at_least_once", "at_most_once"]


@dataclass(frozen=True)
class LocalStep:
    """Work of the driving process. ``prepare`` runs host code before the transaction, once; ``commit`` gets what
    it returned, runs in the checkpoint's transaction, must only write and may be repeated."""

    name: str
    commit: Callable[[Any], Any] | None = None
    prepare: Callable[[], Any] | None = None


@dataclass(frozen=True)
class TaskSpec:
    """Work that any process serving the queue may do."""

    name: str
    step: str
    request: Any = None
    queue: str = "default"
    mode: Mode = "at_least_once"
    max_attempts: int = 3
    deadline_seconds: float | None = None


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended. ``code`` is empty if ``ok``, else ``step_failed``, ``in_doubt`` or ``lost``."""

    ok: bool
    value: Any = None
    code: str = ""
    message: str = ""

    def stored(self) -> dict[str, Any]:
        """What the journal keeps."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class TaskInfo:
    """A task as its handler sees it. ``epoch`` is the fence of this attempt."""

    id: uuid.UUID
    run_id: uuid.UUID
    pos: str
    name: str
    step: str
    attempt: int
    mode: str
    epoch: int


@dataclass(frozen=True)
class StepControl:
    """How a running step learns that it should stop, and proves that it may still write.

    ``guard()`` is the last statement of an open transaction: it holds the claim until the commit, or raises
    ``Fenced``.
    """

    abort: AbortSignal
    guard: Callable[[], None]


class StepHandler(Protocol):
    """What executes the tasks that name it."""

    name: str

    def claim(self, task: TaskInfo, request: Any) -> None:
        """Runs first inside the claim's transaction; may raise :class:`StepRefused`."""

    def run(self, task: TaskInfo, request: Any, control: StepControl) -> Any:
        """Does the work, outside any transaction."""


@runtime_checkable
class PreparedStep(StepHandler, Protocol):
    """A handler that has something to ask before its task is claimed: code that may be slow, or not ours."""

    def prepare(self, task: TaskInfo, request: Any) -> None:
        """Runs before the claim's transaction, once for each attempt; may raise :class:`StepRefused`."""


class StepRefused(Exception):
    """Raised by ``prepare`` or ``claim`` of a handler: nothing runs, the task's result is ``value``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__("the step was refused at its claim")


class SpawnRefused(AgoraError):
    """The host does not let this child start."""

    code = "refused"

    def __init__(self, message: str = "", *, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class SignalInfo:
    """A signal that the run has not consumed yet."""

    id: int
    key: str
    dedupe: str
    payload: Any


@dataclass(frozen=True)
class ChildOutcome:
    """How a child ended: ``completed``, ``failed``, ``cancelled``, ``dead``, or ``refused`` at its spawn."""

    run_id: uuid.UUID
    status: str
    output: Any = None
    code: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        """True if the child completed."""
        return self.status == "completed"


@dataclass(frozen=True)
class Spawn:
    """A child about to be inserted; ``data`` is what the parent's code gave for the host."""

    run_id: uuid.UUID
    parent_id: uuid.UUID
    root_id: uuid.UUID
    depth: int
    pos: str
    name: str
    workflow: str
    input: Any
    data: Any
    tenant: str
    actor_id: str


@dataclass(frozen=True)
class RunResult:
    """A run's status and, once it has ended, what came of it."""

    status: str
    output: Any = None
    code: str = ""
    detail: str = ""


@dataclass
class SweepReport:
    """What one pass of the sweeper changed. ``lost_wakes`` must stay 0."""

    taken_over: int = 0
    dead: int = 0
    requeued_tasks: int = 0
    lost_tasks: int = 0
    in_doubt_tasks: int = 0
    cancelled: int = 0
    hinted: int = 0
    lost_wakes: int = 0
    errors: list[str] = field(default_factory=list)
