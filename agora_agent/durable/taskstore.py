"""The statements on tasks. Task row first, run row second, journal last."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, Exists, F, OuterRef, Q, Value, When

from agora_agent import codec
from agora_agent.db import DbNow, KeyField
from agora_agent.durable import store
from agora_agent.durable.models import Run, Task
from agora_agent.durable.values import TaskInfo, TaskOutcome, TaskSpec

Status = Task.Status
QUEUED = Q(status=Status.QUEUED)
RUNNING = Q(status=Status.RUNNING)


@dataclass(frozen=True)
class TaskRow:
    """What a claim needs to know of a task before it tries."""

    info: TaskInfo
    request: str
    status: str
    owner: str
    max_attempts: int
    deadline_seconds: float | None
    queue: str


def task_id(run_id: uuid.UUID, pos: str) -> uuid.UUID:
    """The id of the task at a position: the same again after a crash."""
    return uuid.uuid5(run_id, f"task:{pos}")


def reserve(claim: store.Claim, count: int) -> bool:
    """Fence a dispatch and count its tasks; False if the claim is lost or a cancel was asked for."""
    return bool(
        Run.objects.using(store.alias())
        .filter(id=claim.run_id, epoch=claim.epoch, status=Run.Status.RUNNING, cancel_at__isnull=True)
        .update(pending_tasks=F("pending_tasks") + count)
    )


def insert_tasks(run_id: uuid.UUID, specs: Iterable[tuple[str, TaskSpec, str]]) -> None:
    """One bulk insert of (position, spec, encoded request)."""
    Task.objects.using(store.alias()).bulk_create(
        Task(
            id=task_id(run_id, pos),
            run_id=run_id,
            pos=pos,
            name=spec.name,
            step=spec.step,
            request=request,
            queue=spec.queue,
            mode=spec.mode,
            max_attempts=spec.max_attempts if spec.mode == "at_least_once" else 1,
            deadline_seconds=spec.deadline_seconds,
        )
        for pos, spec, request in specs
    )


def names_at(run_id: uuid.UUID, positions: Iterable[str]) -> dict[str, str]:
    """The names of the tasks dispatched at these positions."""
    rows = Task.objects.using(store.alias()).filter(run_id=run_id, pos__in=list(positions))
    return dict(rows.values_list("pos", "name"))


def read(task: uuid.UUID) -> TaskRow | None:
    """A task as it is now."""
    row = Task.objects.using(store.alias()).filter(id=task).first()
    if row is None:
        return None
    info = TaskInfo(row.id, row.run_id, row.pos, row.name, row.step, row.attempts, row.mode, row.epoch)
    return TaskRow(
        info, row.request, row.status, row.owner, row.max_attempts, row.deadline_seconds, row.queue
    )


def _live_run() -> Exists:
    runs = Run.objects.filter(id=OuterRef("run_id"), status__in=Run.LIVE, cancel_at__isnull=True)
    return Exists(runs)


def claim(row: TaskRow, owner: str, lease: float) -> bool:
    """Take a queued task of a live run, conditional on the row that was read."""
    return bool(
        Task.objects.using(store.alias())
        .filter(
            _live_run(),
            id=row.info.id,
            status=Status.QUEUED,
            epoch=row.info.epoch,
            available_at__lte=DbNow(),
        )
        .update(
            status=Status.RUNNING,
            epoch=F("epoch") + 1,
            attempts=F("attempts") + 1,
            owner=owner,
            lease_until=store.after(lease),
            hinted_at=None,
        )
    )


def finish(
    info: TaskInfo, status: str, outcome: TaskOutcome, *, before: Q, token: str, driver: int | None = None
) -> bool | None:
    """Three statements: the task's end, the run's count and doorbell, the journal row.

    None if the task is not the caller's any more; False if the run had ended (the result stays with the task).
    ``driver``: the epoch of the run claim that waits for this result itself and needs no ring.
    """
    using = store.alias()
    text = codec.encode(outcome.stored())
    tasks = Task.objects.using(using).filter(id=info.id)
    ended = tasks.filter(before, epoch=info.epoch).update(
        status=status, lease_until=None, result=text, last_error=outcome.message, finished_at=DbNow()
    )
    if not ended:
        return None
    if not _count_down(info.run_id, driver):
        tasks.update(late=True)
        return False
    entry = store.Entry(info.pos, info.name, "task", text, outcome.ok, token)
    store.insert_entry(info.run_id, entry)
    return True


def _count_down(run_id: uuid.UUID, driver: int | None) -> bool:
    last = Q(status=Run.Status.SUSPENDED, pending_tasks=1)
    changes: dict[str, Any] = {
        "available_at": Case(When(last, then=DbNow()), default=F("available_at")),
        "status": Case(
            When(last, then=Value(Run.Status.READY.value)), default=F("status"), output_field=KeyField()
        ),
        "doorbell": F("doorbell") + 1,
    }
    if driver is not None:
        # a driver that has been taken over must not swallow the ring of its successor
        waits = Q(status=Run.Status.RUNNING, epoch=driver)
        changes["doorbell"] = Case(When(waits, then=F("doorbell")), default=F("doorbell") + 1)
    changes["pending_tasks"] = F("pending_tasks") - 1
    runs = Run.objects.using(store.alias()).filter(id=run_id, status__in=Run.LIVE)
    return bool(runs.update(**changes))


def requeue(info: TaskInfo, *, before: Q, delay: float, error: str, attempts: int | None = None) -> bool:
    """Another attempt later, conditional on the caller's epoch. ``attempts``: how many there have been."""
    tasks = Task.objects.using(store.alias()).filter(before, id=info.id, epoch=info.epoch)
    return bool(
        tasks.update(
            status=Status.QUEUED,
            lease_until=None,
            owner="",
            available_at=store.after(delay) if delay else DbNow(),
            last_error=error,
            attempts=info.attempt if attempts is None else attempts,
        )
    )


def cancel(info: TaskInfo, *, before: Q) -> bool:
    """End a task without a result, because its run is being cancelled."""
    ended = (
        Task.objects.using(store.alias())
        .filter(before, id=info.id, epoch=info.epoch)
        .update(status=Status.CANCELLED, lease_until=None, finished_at=DbNow())
    )
    if ended:
        _count_down(info.run_id, None)
    return bool(ended)


def cancel_queued(run_id: uuid.UUID) -> None:
    """What has not begun will not begin: part of the run's terminal transaction."""
    Task.objects.using(store.alias()).filter(run_id=run_id, status=Status.QUEUED).update(
        status=Status.CANCELLED, finished_at=DbNow()
    )


def holds(info: TaskInfo) -> bool:
    """True if this attempt still owns the task; locks the row until the transaction ends."""
    return store.share_lock(Task._meta.db_table, info.id, info.epoch)


def claimed_by(info: TaskInfo, owner: str) -> bool:
    """True if ``owner`` has the task: its claim was committed though nobody said so."""
    tasks = Task.objects.using(store.alias())
    return tasks.filter(id=info.id, owner=owner, status=Status.RUNNING).exists()


def recorded(info: TaskInfo, token: str) -> bool | None:
    """What :func:`finish` would have said, if its commit happened though nobody said so; else None."""
    entry = store.entry_at(info.run_id, info.pos)
    if entry is not None and entry.token == token:
        return True
    late = Task.objects.using(store.alias()).filter(id=info.id, epoch=info.epoch, late=True)
    return False if late.exists() else None
