"""Finds what nobody works on any more. Every write is conditional, so any number of sweepers may run at once."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db.models import F, Q

from agora_agent.db import DbNow
from agora_agent.durable import endings, execution, lookups, store, taskstore, transactions
from agora_agent.durable.failures import LEFT, backoff, describe
from agora_agent.durable.models import Journal, Run, Task
from agora_agent.durable.values import SweepReport, TaskInfo, TaskOutcome

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")

#: Takeovers without progress after which a run is dead.
MAX_CRASHES = 5
MAX_BACKOFF_SECONDS = 300
#: A hint that has come to nothing for so long is sent again.
HINT_AGAIN_SECONDS = 30.0


def sweep(engine: Engine) -> SweepReport:
    """One pass. What fails for one row is logged and does not keep the others from their turn."""
    report = SweepReport()
    for task in _rows(report, partial(lookups.orphans, Task)):
        _each(report, task.id, partial(_orphaned_task, engine, task, report))
    for run in _rows(report, partial(lookups.orphans, Run)):
        _each(report, run.id, partial(_orphaned_run, engine, run, report))
    for run_id in _rows(report, lookups.orphaned_children):
        _each(report, run_id, partial(_orphaned_child, engine, run_id, report))
    for run_id in _rows(report, lookups.runs_with_stranded_tasks):
        _each(report, run_id, partial(taskstore.cancel_queued, run_id))
    for run_id, bell, why in _rows(report, lookups.asleep_with_reason_gone):
        _each(report, run_id, partial(_wake, engine, run_id, bell, why, report))
    if not engine.dispatcher.pulls:
        _hint(engine, report)
    return report


def _rows(report: SweepReport, read: Callable[[], list[Any]]) -> list[Any]:
    try:
        return read()
    except Exception as error:
        logger.exception("the sweeper could not read")
        report.errors.append(describe(error))
        transactions.refresh(store.alias())
        return []


def _each(report: SweepReport, row_id: uuid.UUID, work: Callable[[], None]) -> None:
    try:
        work()
    except (Exception, *LEFT) as error:
        logger.exception("the sweeper could not settle a row", extra={"row": str(row_id)})
        report.errors.append(f"{row_id}: {describe(error)}")
        transactions.refresh(store.alias())


def _orphaned_run(engine: Engine, run: Run, report: SweepReport) -> None:
    using = store.alias()
    rows = Journal.objects.using(using).filter(run_id=run.id).count()
    crashes = run.crashes + 1 if rows == run.crash_rows else 1
    standing = Q(epoch=run.epoch, owner=run.owner, status=Run.Status.RUNNING, lease_until=run.lease_until)
    if crashes >= MAX_CRASHES:
        detail = f"{crashes} processes ended while they drove this run, without progress"
        try:
            transactions.transact(
                lambda: endings.settle(
                    engine,
                    run.id,
                    run.parent_id,
                    Run.Status.DEAD,
                    standing,
                    code="run_failed",
                    detail=detail,
                    outside=True,
                ),
                using=using,
                durable=engine.durable,
            )
        except endings.Refused:
            return
        report.dead += 1
        logger.error("a run is dead", extra={"run": str(run.id), "crashes": crashes})
        return
    # the first crash may be a deploy or a lost machine: no reason to wait
    delay = 0 if crashes == 1 else min(2**crashes, MAX_BACKOFF_SECONDS)
    taken = (
        Run.objects.using(using)
        .filter(standing, id=run.id)
        .update(
            status=Run.Status.READY,
            owner="",
            lease_until=None,
            crashes=crashes,
            crash_rows=rows,
            available_at=store.after(delay) if delay else DbNow(),
        )
    )
    if taken:
        report.taken_over += 1
        logger.warning("a run was taken over", extra={"run": str(run.id), "crashes": crashes})
        engine.hint_run(run.id)


def _orphaned_task(engine: Engine, task: Task, report: SweepReport) -> None:
    info = TaskInfo(
        task.id, task.run_id, task.pos, task.name, task.step, task.attempts, task.mode, task.epoch
    )
    standing = taskstore.RUNNING & Q(lease_until=task.lease_until)
    if task.mode == "at_most_once":
        message = "the process ended while the step ran: whether it took effect is not known"
        outcome = TaskOutcome(False, None, "in_doubt", message)
        execution.record(engine, info, standing, outcome, Task.Status.IN_DOUBT)
        report.in_doubt_tasks += 1
    elif task.attempts < task.max_attempts:
        # the first end may be a deploy or a lost machine: no reason to wait
        delay = 0 if task.attempts <= 1 else backoff(task.attempts)
        error = "the process ended while the step ran"
        if taskstore.requeue(info, before=standing, delay=delay, error=error):
            report.requeued_tasks += 1
            engine.hint_task(task.id, task.queue)
    else:
        message = f"the process ended while the step ran, {task.attempts} times"
        outcome = TaskOutcome(False, None, "lost", message)
        execution.record(engine, info, standing, outcome, Task.Status.DONE)
        report.lost_tasks += 1


def _orphaned_child(engine: Engine, run_id: uuid.UUID, report: SweepReport) -> None:
    report.cancelled += endings.cancel(engine, run_id, "", "its parent ended")


def _wake(engine: Engine, run_id: uuid.UUID, bell: int, why: str, report: SweepReport) -> None:
    woken = (
        Run.objects.using(store.alias())
        .filter(id=run_id, status=Run.Status.SUSPENDED, doorbell=bell)
        .update(status=Run.Status.READY, available_at=DbNow(), doorbell=F("doorbell") + 1)
    )
    if woken:
        report.lost_wakes += 1
        logger.error("a run had lost its wake-up", extra={"run": str(run_id), "why": why})
        engine.hint_run(run_id)


def _hint(engine: Engine, report: SweepReport) -> None:
    for model, send in ((Run, engine.hint_run), (Task, engine.hint_task)):
        for row_id, queue in _rows(report, partial(lookups.unhinted, model, HINT_AGAIN_SECONDS)):
            rows: Any = model._default_manager.using(store.alias()).filter(id=row_id)
            rows.update(hinted_at=DbNow())
            send(row_id, queue)
            report.hinted += 1
