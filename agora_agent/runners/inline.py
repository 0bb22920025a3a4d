"""The inline runner: a turn is a thread of this process. The same rows, frames and decisions as the durable one;
only the program counter lives in memory, so a run does not outlive its process."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.models import Min

from agora_agent import codec
from agora_agent.abort import AbortSignal
from agora_agent.conf import agora_settings
from agora_agent.db import database_now
from agora_agent.exceptions import Busy, Fenced, ModelFailed, RunCancelled, is_control_flow
from agora_agent.governance.locking import retrying
from agora_agent.governance.principal import Principal
from agora_agent.ids import child_id
from agora_agent.models import AgentRun, write_alias
from agora_agent.runners.cancel import request_cancel
from agora_agent.runners.deps import loop_deps
from agora_agent.runners.maintenance import start_maintenance
from agora_agent.runners.model_step import ModelStep
from agora_agent.runners.replies import read_decision, read_settlement
from agora_agent.runners.settle import settle
from agora_agent.runners.sinks import StreamSink
from agora_agent.runners.start import DelegationRefused, create_child, create_run
from agora_agent.runners.tool_step import ToolStep
from agora_agent.runners.waits import InlineRuns
from agora_agent.turn.hooks import (
    ChildOutcome,
    Ending,
    LocalStep,
    RunSink,
    StepOutcome,
    ToolStepSpec,
    TurnInput,
    WaitingCall,
)
from agora_agent.turn.loop import run_agent_loop
from agora_agent.turn.runner import AgentRunInput, Decision, ElicitationReply

logger = logging.getLogger("agora_agent.runners")

MODEL_ATTEMPTS = 3
#: Threads, and so database connections, of one step's reads.
PARALLEL_TOOLS = 8


class _Refused(Exception):
    """A step's claim has a result instead of an execution."""

    def __init__(self, value: Any) -> None:
        super().__init__("refused")
        self.value = value


@dataclass(frozen=True)
class _Task:
    attempt: int


class InlineAgentRunner:
    """Runs turns in threads of this process, a bounded number at once."""

    durable = False

    def __init__(self) -> None:
        self.runs = InlineRuns()
        self.slots = _Slots()
        self.owner = f"{os.getpid()}:{secrets.token_hex(8)}"

    def start(self, run_input: AgentRunInput, *, run_id: uuid.UUID | None = None) -> uuid.UUID:
        """See :class:`agora_agent.turn.runner.AgentRunner`."""
        if not self.slots.free():
            raise Busy(retryAfter=1)
        start_maintenance()
        using = write_alias()
        with transaction.atomic(using=using):
            turn = create_run(run_input, run_id, durable=False, owner=self.owner)
            transaction.on_commit(partial(self._launch, turn), using=using)
        return turn.run_id

    def is_run_active(self, run_id: uuid.UUID) -> bool:
        """True while the run has not ended."""
        return AgentRun.objects.filter(pk=run_id).live().exists()

    def signal(self, run_id: uuid.UUID, tool_call_id: str, reply: Decision | ElicitationReply) -> None:
        """Let the wait look for its decision."""
        self.runs.wake(f"tool:{run_id}:{tool_call_id}")

    def wake(self, run_id: uuid.UUID, key: str, dedupe: str) -> None:
        """Let the wait on ``key`` look once the open transaction has committed."""
        transaction.on_commit(partial(self.runs.wake, key), using=write_alias(), robust=True)

    def oldest_ready_seconds(self) -> float | None:
        """The age of the oldest run that no thread has begun."""
        queued = AgentRun.objects.live().filter(durable=False, phase=AgentRun.Phase.QUEUED)
        since = queued.aggregate(since=Min("created_at"))["since"]
        return None if since is None else (database_now(write_alias()) - since).total_seconds()

    def cancel(
        self, run_id: uuid.UUID, *, by: str = "", reason: str = "", principal: Principal | None = None
    ) -> bool:
        """Settle the run and its children now; what this process executes for them is aborted at once."""
        using = write_alias()

        def stop() -> list[uuid.UUID]:
            with transaction.atomic(using=using):
                asked_by = request_cancel(run_id, by, principal)
                if asked_by is None:
                    return []
                tree = _tree(run_id)
                settle(run_id, Ending("cancelled", by=asked_by))
                for stopped in tree:
                    transaction.on_commit(partial(self.runs.abort, stopped), using=using, robust=True)
                return tree

        return bool(retrying(stop, using))

    def _launch(self, turn: TurnInput) -> None:
        threading.Thread(
            target=self._execute, args=(turn,), name=f"agora-turn-{turn.run_id}", daemon=True
        ).start()

    def _execute(self, turn: TurnInput) -> None:
        abort = AbortSignal()
        try:
            # Held while it waits for its place: a queued run is alive.
            with self.runs.held(turn.run_id, abort), self.slots.taken():
                self.execute(turn, abort)
        finally:
            connections.close_all()

    def execute(self, turn: TurnInput, abort: AbortSignal) -> Ending:
        """Run the loop in this thread to its end, whatever it is."""
        with self.runs.held(turn.run_id, abort):
            try:
                return run_agent_loop(loop_deps(), turn, InlineHooks(self, turn, abort))
            except (RunCancelled, Fenced):
                ending = Ending("cancelled")
            except Exception as error:
                logger.exception("inline run failed", extra={"run_id": str(turn.run_id)})
                ending = Ending("failed", code="run_failed", detail=type(error).__name__)
            using = write_alias()

            def end() -> None:
                with transaction.atomic(using=using):
                    settle(turn.run_id, ending)

            retrying(end, using)
            return ending


class _Slots:
    """Bounds the turns that execute at once; one that waits for a person does not count."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._used = 0

    def free(self) -> bool:
        with self._changed:
            return self._used < agora_settings.INLINE_MAX_CONCURRENCY

    @contextmanager
    def taken(self) -> Iterator[None]:
        self._take()
        try:
            yield
        finally:
            self._give_back()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Inside, the calling turn waits and does not count."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._used < agora_settings.INLINE_MAX_CONCURRENCY)
            self._used += 1

    def _give_back(self) -> None:
        with self._changed:
            self._used -= 1
            self._changed.notify()


class InlineHooks:
    """The loop's hooks in this thread."""

    def __init__(self, runner: InlineAgentRunner, turn: TurnInput, abort: AbortSignal) -> None:
        self.runner, self.turn, self.abort = runner, turn, abort
        self._model_step = ModelStep()
        self._tool_step = ToolStep(_Refused)

    def group(self, steps: Sequence[LocalStep]) -> list[Any]:
        """One transaction for all of them."""
        self.check_cancelled()
        return self._commit(steps)

    def finish(self, step: LocalStep, ending: Ending) -> None:
        """The last transaction of the run."""
        self._commit([step])

    def _commit(self, steps: Sequence[LocalStep]) -> list[Any]:
        prepared = [step.prepare() if step.prepare else None for step in steps]
        using = write_alias()

        def write() -> list[Any]:
            with transaction.atomic(using=using):
                return [step.commit(value) for step, value in zip(steps, prepared, strict=True)]

        values: list[Any] = codec.roundtrip(retrying(write, using))
        return values

    def model_step(self, name: str, request: dict[str, Any]) -> StepOutcome:
        """Call the model here; a failure that may pass is tried again as a whole step."""
        attempt = 1
        while True:
            try:
                return StepOutcome(True, self._dispatched(self._model_step, request, attempt))
            except ModelFailed as error:
                if attempt == MODEL_ATTEMPTS:
                    return StepOutcome(False, None, "step_failed", error.message)
                if self.abort.wait(0.2 * 2**attempt):
                    raise RunCancelled(self.abort.reason) from error
                attempt += 1

    def tool_step(self, spec: ToolStepSpec) -> StepOutcome:
        """Execute the tool here."""
        return StepOutcome(True, self._dispatched(self._tool_step, {"call": str(spec.call_pk)}, 1))

    def parallel(self, specs: Sequence[ToolStepSpec]) -> list[StepOutcome]:
        """A thread for each, some at a time; all settle before any is looked at."""
        outcomes: list[StepOutcome | BaseException | None] = [None] * len(specs)
        places = threading.Semaphore(PARALLEL_TOOLS)

        def work(place: int) -> None:
            try:
                with places:
                    outcomes[place] = self.tool_step(specs[place])
            except BaseException as error:
                outcomes[place] = error
            finally:
                connections.close_all()

        threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(len(specs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return list(_settled(outcomes))

    def await_approval(self, call: WaitingCall) -> dict[str, Any]:
        """Wait on the stored decision."""
        return self._wait(call, lambda: read_decision(call.pk, call.round))

    def await_answers(self, call: WaitingCall) -> dict[str, Any]:
        """The same wait, under the question set's key."""
        return self.await_approval(call)

    def await_settlement(self, call: WaitingCall) -> dict[str, Any]:
        """Wait for a person to say what became of the call."""
        return self._wait(call, lambda: read_settlement(call.pk, call.round))

    def run_agent(self, name: str, agent: str, task: str, max_steps: int, call_pk: uuid.UUID) -> ChildOutcome:
        """A nested loop with a run row of its own, in this thread."""
        turn = self.turn.delegated(child_id(self.turn.run_id, name), agent, task, max_steps)
        using = write_alias()

        def spawn() -> None:
            with transaction.atomic(using=using):
                create_child(turn, self.turn.run_id, call_pk, durable=False, owner=self.runner.owner)

        try:
            retrying(spawn, using)
        except DelegationRefused as refusal:
            return ChildOutcome("refused", refusal.message, refusal.code)
        abort = AbortSignal()
        forget = self.abort.on_abort(abort.abort)
        try:
            ending = self.runner.execute(turn, abort)
        finally:
            forget()
        self.check_cancelled()
        return ChildOutcome(ending.status, ending.answer, ending.code)

    def open_sink(self) -> RunSink:
        """The top-level run's stream."""
        return StreamSink(self.turn.root_id)

    def patched(self, patch_id: str) -> bool:
        """An inline run is never older than its process."""
        return True

    def check_cancelled(self) -> None:
        """Raise RunCancelled once the run was asked to stop."""
        if self.abort.aborted:
            raise RunCancelled(self.abort.reason)

    def guard(self) -> None:
        """Raise Fenced if the run has ended. No lock: a stream that was closed meanwhile takes no frame anyway."""
        if not AgentRun.objects.filter(pk=self.turn.run_id, owner=self.runner.owner).live().exists():
            raise Fenced("the run has ended")

    def _wait(self, call: WaitingCall, look: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        with self.runner.slots.given_back():
            return self.runner.runs.wait(call.key, call.pk, self.abort, look)

    def _dispatched(self, step: Any, request: dict[str, Any], attempt: int) -> Any:
        using = write_alias()
        task = _Task(attempt)

        def claim() -> None:
            with transaction.atomic(using=using):
                step.claim(task, request)

        try:
            if hasattr(step, "prepare"):
                step.prepare(task, request)
            retrying(claim, using)
        except _Refused as refused:
            return refused.value
        control = _Control(self.guard)
        forget = self.abort.on_abort(control.abort.abort)
        try:
            return codec.roundtrip(step.run(task, request, control))
        finally:
            forget()


class _Control:
    def __init__(self, guard: Callable[[], None]) -> None:
        self.abort = AbortSignal()
        self.guard = guard


def _settled(outcomes: Sequence[StepOutcome | BaseException | None]) -> Iterator[StepOutcome]:
    for wanted in (True, False):
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and is_control_flow(outcome) is wanted:
                raise outcome
    for outcome in outcomes:
        if isinstance(outcome, StepOutcome):
            yield outcome


def _tree(run_id: uuid.UUID) -> list[uuid.UUID]:
    tree, level = [run_id], [run_id]
    while level:
        level = list(AgentRun.objects.filter(parent_id__in=level).live().values_list("pk", flat=True))
        tree.extend(level)
    return tree
