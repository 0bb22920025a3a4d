"""Drive a run until it parks or ends; execute a task. Never raises what a workflow or a step raised."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import close_old_connections, connections, transaction

from agora_agent import codec
from agora_agent.abort import AbortSignal
from agora_agent.durable import endings, faults, leases, lookups, owners, store, taskstore, transactions
from agora_agent.durable.leases import Held
from agora_agent.durable.models import Run, Task
from agora_agent.durable.values import StepControl, StepHandler, StepRefused, TaskInfo, TaskOutcome
from agora_agent.exceptions import (
    ControlFlow,
    Fenced,
    RunCancelled,
    is_replay_integrity_error,
)

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")

#: Replays in one claim because something rang just before parking; then others get their turn.
AGAIN_LIMIT = 50
#: After so long without a statement the server may have closed the connection.
IDLE_SECONDS = 30.0
#: What ends a body or a step as an error. A library's cancellation is one: nobody here has asked for it.
ERRORS = (Exception, asyncio.CancelledError)
#: What leaves a function of the engine because a row is somebody else's.
LEFT = (Fenced, RunCancelled)


def describe(error: BaseException) -> str:
    """The error's class and words, also where it has none or cannot say them."""
    try:
        words = str(error)
    except Exception:
        words = ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def backoff(attempts: int) -> float:
    """Seconds before another attempt."""
    return float(min(2 ** max(attempts - 1, 0), 60))


def drive(engine: Engine, run_id: uuid.UUID) -> bool:
    """Claim a run and advance it until it parks or ends; False if there was nothing to claim."""
    using = store.alias()
    if engine.durable:
        if connections[using].in_atomic_block:
            raise transaction.TransactionManagementError("a run is never driven inside a transaction")
        close_old_connections()
    try:
        return _drive(engine, run_id)
    except Fenced:
        return False
    finally:
        if engine.durable:
            close_old_connections()


def _drive(engine: Engine, run_id: uuid.UUID) -> bool:
    owner = owners.new_owner()
    claimed = transactions.statement(
        lambda: store.claim_run(run_id, owner, engine.lease_seconds, engine.patch_count, engine.claimable()),
        using=store.alias(),
        recognise=lambda: store.read_claim(run_id, owner) is not None or None,
    )
    claim = store.read_claim(run_id, owner) if claimed else None
    if claim is None:
        return False
    faults.hit("after_claim")
    with engine.leases.hold(Held(Run, run_id, run_id, owner)) as held:
        for _ in range(AGAIN_LIMIT):
            if not _replay(engine, claim, held):
                return True
            fresh = store.read_claim(run_id, owner)
            if fresh is None:
                return True
            claim = fresh
        if store.release(claim):
            engine.hint_run(run_id)
    return True


def _replay(engine: Engine, claim: store.Claim, held: Held) -> bool:
    """One pass of the workflow's code; True if it must be passed again."""
    from agora_agent.durable.context import Again, Context

    held.allow(engine.step_deadline_seconds)
    if claim.cancelled:
        endings.settle_held(engine, claim, Run.Status.CANCELLED)
        return False
    context = Context(engine, claim, held)
    error: BaseException | None = None
    try:
        context.end(engine.body(claim.workflow, claim.version)(context, context.input))
    except (ControlFlow, *ERRORS) as raised:
        # what the context decided stands, whatever the workflow made of it
        error = context.closed or raised
    if isinstance(error, Again):
        return True
    if isinstance(error, RunCancelled) and not held.lost:
        endings.settle_held(engine, claim, Run.Status.CANCELLED)
    elif is_replay_integrity_error(error):
        logger.error("the replay diverged", extra={"run": str(claim.run_id), "error": str(error)})
        _fail(engine, claim, "replay_diverged", str(error))
    elif error is not None and not isinstance(error, ControlFlow):
        logger.error("a workflow raised", exc_info=error, extra={"run": str(claim.run_id)})
        _fail(engine, claim, "run_failed", describe(error))
    return False


def _fail(engine: Engine, claim: store.Claim, code: str, detail: str) -> None:
    if endings.settle_held(engine, claim, Run.Status.FAILED, code, codec_text(detail)):
        return
    endings.settle_held(engine, claim, Run.Status.CANCELLED)  # 0 rows where the claim is lost


def codec_text(text: str) -> str:
    """Text that any database can hold."""
    return codec.clean_text(text)


def execute_task(engine: Engine, task_id: uuid.UUID) -> bool:
    """Work off a hint for a task; False if it was stale or the queue is not served here."""
    using = store.alias()
    if engine.durable:
        if connections[using].in_atomic_block:
            raise transaction.TransactionManagementError("a task is never executed inside a transaction")
        close_old_connections()
    try:
        row = taskstore.read(task_id)
        if row is None or row.status != Task.Status.QUEUED or not engine.serves(row.queue):
            return False
        run_task(engine, task_id)
    except LEFT:
        return False
    finally:
        if engine.durable:
            close_old_connections()
    return True


class _NotClaimed(Exception):
    """Somebody else has the task, or its run has ended."""


def run_task(
    engine: Engine, task_id: uuid.UUID, driven_by: tuple[store.Claim, Held] | None = None
) -> TaskOutcome | None:
    """Claim a task and execute it; its outcome if this call recorded one.

    ``driven_by``: the drive that has dispatched the task and executes it on the spot, keeping its own claim.

    Raises:
        RunCancelled: only with ``driven_by``.
    """
    row = taskstore.read(task_id)
    handler = engine.handler(row.info.step) if row else None
    if row is None or handler is None or row.status != Task.Status.QUEUED:
        return None
    work = _Execution(engine, handler, row, driven_by)
    return work.run() if work.claim() else work.outcome


class _Execution:
    """One attempt at one task."""

    def __init__(
        self,
        engine: Engine,
        handler: StepHandler,
        row: taskstore.TaskRow,
        driven_by: tuple[store.Claim, Held] | None,
    ) -> None:
        self.engine, self.handler, self.row = engine, handler, row
        self.driver, self.driver_held = driven_by or (None, None)
        self.request: Any = codec.decode(row.request)
        self.owner = owners.new_owner()
        self.info = replace(row.info, attempt=row.info.attempt + 1, epoch=row.info.epoch + 1)
        self.outcome: TaskOutcome | None = None

    def claim(self) -> bool:
        """The host's claim and ours in one transaction; False if nothing is to run (``outcome`` says why)."""
        before = Task.Status.QUEUED

        def work() -> bool:
            self.handler.claim(self.info, self.request)
            if not taskstore.claim(self.row, self.owner, self.engine.lease_seconds):
                raise _NotClaimed
            return True

        try:
            transactions.transact(
                work,
                using=store.alias(),
                durable=self.engine.durable,
                recognise=lambda: taskstore.claimed_by(self.info, self.owner) or None,
            )
        except _NotClaimed:
            return False
        except StepRefused as refused:
            self._record(self.row.info, TaskOutcome(True, codec.roundtrip(refused.value)), before=before)
            return False
        except RunCancelled:
            self._cancelled(self.row.info, before=before)
            return False
        except ControlFlow:
            return False
        except ERRORS as error:
            logger.warning("a step raised at its claim", exc_info=error, extra={"task": str(self.info.id)})
            self._failed(self.row.info, error, before=before)
            return False
        faults.hit("after_task_claim")
        return True

    def run(self) -> TaskOutcome | None:
        """The work itself, outside any transaction, and the record of what came of it."""
        seconds = self.row.deadline_seconds or self.engine.step_deadline_seconds
        held = Held(Task, self.info.id, self.info.run_id, self.owner)
        held.allow(seconds)
        if self.driver_held is not None:
            self.driver_held.allow(seconds + self.engine.lease_seconds)
            if self.driver_held.cancelled:
                held.abort.abort(leases.CANCELLED)
        began = time.monotonic()
        with self.engine.leases.hold(held):
            try:
                value = self.handler.run(self.info, self.request, StepControl(held.abort, self._guard))
                self.outcome = TaskOutcome(True, codec.roundtrip(value))
            except ControlFlow as flow:
                return self._left(flow, held.abort)
            except ERRORS as error:
                logger.info("a step raised", exc_info=error, extra={"task": str(self.info.id)})
                faults.hit("after_task_body")
                self._refresh(began)
                return self._failed(self.info, error, before=Task.Status.RUNNING)
            faults.hit("after_task_body")
            self._refresh(began)
            return self._record(self.info, self.outcome, before=Task.Status.RUNNING)

    def _refresh(self, began: float) -> None:
        if time.monotonic() - began > IDLE_SECONDS:
            transactions.refresh(store.alias())

    def _guard(self) -> None:
        if not taskstore.holds(self.info):
            raise Fenced("the task is somebody else's now")

    def _left(self, flow: ControlFlow, abort: AbortSignal) -> TaskOutcome | None:
        if not isinstance(flow, RunCancelled):
            return None
        if abort.aborted and abort.reason == leases.DEADLINE:
            late = TimeoutError("the step did not end within its deadline")
            return self._failed(self.info, late, before=Task.Status.RUNNING, again=True)
        if abort.aborted and abort.reason != leases.CANCELLED:
            return None
        return self._cancelled(self.info, before=Task.Status.RUNNING)

    def _cancelled(self, info: TaskInfo, *, before: str) -> None:
        transactions.transact(
            lambda: taskstore.cancel(info, before=before), using=store.alias(), durable=self.engine.durable
        )
        if self.driver is not None:
            raise RunCancelled("the run was cancelled")

    def _failed(
        self, info: TaskInfo, error: BaseException, *, before: str, again: bool = False
    ) -> TaskOutcome | None:
        message = codec_text(describe(error))
        attempts = self.info.attempt
        once = info.mode == "at_most_once"
        if again and once:
            outcome = TaskOutcome(False, None, "in_doubt", message)
            return self._record(info, outcome, before=before, status=Task.Status.IN_DOUBT)
        retryable = again or getattr(error, "retryable", False) is True
        if retryable and not once and attempts < self.row.max_attempts:
            delay = backoff(attempts)
            transactions.statement(
                lambda: taskstore.requeue(
                    info,
                    before=before,
                    delay=delay,
                    error=message,
                    attempted=before == Task.Status.RUNNING,
                ),
                using=store.alias(),
            )
            return None
        return self._record(info, TaskOutcome(False, None, "step_failed", message), before=before)

    def _record(
        self, info: TaskInfo, outcome: TaskOutcome, *, before: str, status: str = Task.Status.DONE
    ) -> TaskOutcome | None:
        driver = self.driver.epoch if self.driver else None
        self.outcome = record(self.engine, info, outcome, before=before, status=status, driver=driver)
        return self.outcome


def record(
    engine: Engine,
    info: TaskInfo,
    outcome: TaskOutcome,
    *,
    before: str,
    status: str,
    driver: int | None = None,
) -> TaskOutcome | None:
    """A task's end, its journal row and its run's wake-up; None if the task is not the caller's any more."""
    token = store.new_token()
    finished = transactions.transact(
        lambda: taskstore.finish(info, status, outcome, before=before, token=token, driver=driver),
        using=store.alias(),
        durable=engine.durable,
        recognise=lambda: taskstore.recorded(info, token) or None,
    )
    faults.hit("after_task_finish")
    if not finished:
        return None
    if driver is None:
        standing = lookups.standing(info.run_id)
        if standing is not None and standing.status == Run.Status.READY:
            engine.hint_run(info.run_id)
    return outcome
