"""Execute a task: claim it together with the host's own claim, do the work, record what came of it."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db.models import Q

from agora_agent import codec
from agora_agent.abort import AbortSignal
from agora_agent.durable import faults, leases, lookups, owners, store, taskstore, transactions
from agora_agent.durable.failures import backoff, describe, is_error
from agora_agent.durable.leases import Held
from agora_agent.durable.models import Run, Task
from agora_agent.durable.taskstore import QUEUED, RUNNING
from agora_agent.durable.values import (
    PreparedStep,
    StepControl,
    StepHandler,
    StepRefused,
    TaskInfo,
    TaskOutcome,
)
from agora_agent.exceptions import ControlFlow, Fenced, RunCancelled

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")

#: After so long without a statement the server may have closed the connection.
IDLE_SECONDS = 30.0


class _NotClaimed(Exception):
    """Only rolls a transaction back: somebody else has the task, or its run is ending."""


def run_hinted(engine: Engine, task_id: uuid.UUID) -> bool:
    """Execute a task if it is queued and this process serves its queue; False if not."""
    row = taskstore.read(task_id)
    if row is None or row.status != Task.Status.QUEUED or not engine.serves(row.queue):
        return False
    handler = engine.handler(row.info.step)
    if handler is None:
        return False
    return Execution(engine, handler, row).run()


def run_on_the_spot(
    engine: Engine, task_id: uuid.UUID, driver: store.Claim, held: Held
) -> TaskOutcome | None:
    """Execute a task inside the drive that waits for it; None if it is for others, or for later.

    Raises:
        RunCancelled: the work was stopped because the run is.
    """
    row = taskstore.read(task_id)
    handler = engine.handler(row.info.step) if row else None
    if row is None or handler is None or row.status != Task.Status.QUEUED:
        return None
    execution = Execution(engine, handler, row, driver, held)
    execution.run()
    return execution.outcome


class Execution:
    """One attempt at one task. ``outcome`` is what this attempt recorded."""

    def __init__(
        self,
        engine: Engine,
        handler: StepHandler,
        row: taskstore.TaskRow,
        driver: store.Claim | None = None,
        driver_held: Held | None = None,
    ) -> None:
        self._engine, self._handler, self._row = engine, handler, row
        self._driver, self._driver_held = driver, driver_held
        self._request: Any = codec.decode(row.request)
        self._owner = owners.new_owner()
        self._info = replace(row.info, attempt=row.info.attempt + 1, epoch=row.info.epoch + 1)
        self.outcome: TaskOutcome | None = None

    def run(self) -> bool:
        """Claim, work, record; False if the claim was not to be had."""
        try:
            if isinstance(self._handler, PreparedStep):
                self._handler.prepare(self._info, self._request)
            self._claim()
        except _NotClaimed:
            return False
        except StepRefused as refused:
            self._record(self._row.info, QUEUED, TaskOutcome(True, codec.roundtrip(refused.value)))
            return True
        except RunCancelled:
            self._stopped(self._row.info, QUEUED)
            return True
        except BaseException as error:
            if not is_error(error):
                raise
            logger.warning("a step raised at its claim", exc_info=error, extra=self._extra())
            self._failed(self._row.info, QUEUED, error)
            return True
        faults.hit("after_task_claim")
        self._work()
        return True

    def _claim(self) -> None:
        def work() -> bool:
            self._handler.claim(self._info, self._request)
            if not taskstore.claim(self._row, self._owner, self._engine.lease_seconds):
                raise _NotClaimed
            return True

        transactions.transact(
            work,
            using=store.alias(),
            durable=self._engine.durable,
            recognise=lambda: taskstore.claimed_by(self._info, self._owner) or None,
        )

    def _work(self) -> None:
        seconds = self._row.deadline_seconds or self._engine.step_deadline_seconds
        held = Held(Task, self._info.id, self._info.run_id, self._owner)
        held.allow(seconds)
        if self._driver_held is not None:
            # the drive waits in this very thread: it lives as long as its step may
            self._driver_held.allow(seconds + self._engine.lease_seconds)
            if self._driver_held.cancelled:
                held.abort.abort(leases.CANCELLED)
        began = time.monotonic()
        with self._engine.leases.hold(held):
            try:
                control = StepControl(held.abort, self._guard)
                outcome = TaskOutcome(
                    True, codec.roundtrip(self._handler.run(self._info, self._request, control))
                )
            except ControlFlow as flow:
                self._left(flow, held.abort)
                return
            except BaseException as error:
                if not is_error(error):
                    raise
                logger.info("a step raised", exc_info=error, extra=self._extra())
                self._ended(began)
                self._failed(self._info, RUNNING, error)
                return
            self._ended(began)
            self._record(self._info, RUNNING, outcome)

    def _ended(self, began: float) -> None:
        faults.hit("after_task_body")
        if time.monotonic() - began > IDLE_SECONDS:
            transactions.refresh(store.alias())

    def _guard(self) -> None:
        if not taskstore.holds(self._info):
            raise Fenced("the task is somebody else's now")

    def _left(self, flow: ControlFlow, abort: AbortSignal) -> None:
        if not isinstance(flow, RunCancelled):
            return
        if abort.aborted and abort.reason == leases.DEADLINE:
            overrun = TimeoutError("the step did not end within its deadline")
            self._failed(self._info, RUNNING, overrun, unknown=True)
        elif not abort.aborted or abort.reason == leases.CANCELLED:
            self._stopped(self._info, RUNNING)

    def _stopped(self, info: TaskInfo, before: Q) -> None:
        """The step says that the run is being cancelled."""
        standing = lookups.standing(info.run_id)
        if self._driver is None and standing and standing.status in Run.LIVE and not standing.cancelled:
            # nobody has asked for that: a run that goes on needs an outcome
            self._failed(info, before, RuntimeError("the step stopped by itself"))
            return
        transactions.transact(
            lambda: taskstore.cancel(info, before=before),
            using=store.alias(),
            durable=self._engine.durable,
        )
        if self._driver is not None:
            raise RunCancelled("the run was cancelled")

    def _failed(self, info: TaskInfo, before: Q, error: BaseException, *, unknown: bool = False) -> None:
        """``unknown``: the step was stopped in the middle, and may have taken effect."""
        message = describe(error)
        attempts, once = self._info.attempt, info.mode == "at_most_once"
        if unknown and once:
            outcome = TaskOutcome(False, None, "in_doubt", message)
            self._record(info, before, outcome, Task.Status.IN_DOUBT)
            return
        retryable = (
            unknown
            or getattr(error, "retryable", False) is True
            or transactions.is_transient(error, store.alias())
        )
        if not retryable or once or attempts >= self._row.max_attempts:
            self._record(info, before, TaskOutcome(False, None, "step_failed", message))
            return
        transactions.statement(
            lambda: taskstore.requeue(
                info, before=before, delay=backoff(attempts), error=message, attempts=attempts
            ),
            using=store.alias(),
        )

    def _record(
        self, info: TaskInfo, before: Q, outcome: TaskOutcome, status: str = Task.Status.DONE
    ) -> None:
        driver = self._driver.epoch if self._driver else None
        if record(self._engine, info, before, outcome, status, driver=driver):
            self.outcome = outcome

    def _extra(self) -> dict[str, str]:
        return {"run": str(self._info.run_id), "task": str(self._info.id)}


def record(
    engine: Engine,
    info: TaskInfo,
    before: Q,
    outcome: TaskOutcome,
    status: str,
    *,
    driver: int | None = None,
) -> bool:
    """A task's end, its journal row and its run's wake-up; False if the task is not the caller's any more or its
    run has ended (the task keeps the result then)."""
    token = store.new_token()
    finished = transactions.transact(
        lambda: taskstore.finish(info, status, outcome, before=before, token=token, driver=driver),
        using=store.alias(),
        durable=engine.durable,
        recognise=lambda: taskstore.recorded(info, token),
    )
    faults.hit("after_task_finish")
    if finished and driver is None:
        standing = lookups.standing(info.run_id)
        if standing is not None and standing.status == Run.Status.READY:
            engine.hint_run(info.run_id)
    return bool(finished)
