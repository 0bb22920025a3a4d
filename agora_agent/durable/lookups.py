"""What pollers, the sweeper and the facade read. Nothing here changes a row."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, Min, OuterRef, Q

from agora_agent import codec
from agora_agent.db import DbNow, database_now
from agora_agent.durable import owners, store
from agora_agent.durable.models import Run, Signal, Task
from agora_agent.durable.values import RunResult

BATCH = 200


@dataclass(frozen=True)
class Standing:
    """Where a run is."""

    status: str
    cancelled: bool
    parent_id: uuid.UUID | None


def standing(run_id: uuid.UUID) -> Standing | None:
    """A run's status as committed."""
    row = Run.objects.using(store.alias()).filter(id=run_id).values_list("status", "cancel_at", "parent_id")
    found = row.first()
    return Standing(found[0], found[1] is not None, found[2]) if found else None


def result(run_id: uuid.UUID) -> RunResult | None:
    """A run's status and result."""
    run = Run.objects.using(store.alias()).select_related("body").filter(id=run_id).first()
    if run is None:
        return None
    output = None if run.body.output is None else codec.decode(run.body.output)
    return RunResult(run.status, output, run.body.error_code, run.body.error_detail)


def child_end(child_id: uuid.UUID) -> dict[str, Any] | None:
    """A child's end as its parent's journal keeps it; None while it lives."""
    ended = result(child_id)
    if ended is None or ended.status in Run.LIVE:
        return None
    return {"status": ended.status, "output": ended.output, "code": ended.code, "detail": ended.detail}


def ended_by(claim: store.Claim) -> bool:
    """True if this claim ended its run: an end from outside moves the epoch."""
    ended = Run.objects.using(store.alias()).filter(id=claim.run_id, epoch=claim.epoch, owner=claim.owner)
    return ended.exclude(status__in=Run.LIVE).exists()


def live_children(parents: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Children that have not ended."""
    runs = Run.objects.using(store.alias()).filter(parent_id__in=list(parents), status__in=Run.LIVE)
    return list(runs.order_by("id").values_list("id", flat=True))


def due_runs(mine: Q, limit: int) -> list[uuid.UUID]:
    """Runs that wait for a driver, the longest waiting first."""
    runs = Run.objects.using(store.alias()).filter(mine, status=Run.Status.READY, available_at__lte=DbNow())
    return list(runs.order_by("available_at", "id").values_list("id", flat=True)[:limit])


def due_tasks(steps: Iterable[str], queues: Iterable[str] | None, limit: int) -> list[uuid.UUID]:
    """Tasks that wait for a process with these steps and queues, the longest waiting first."""
    tasks = Task.objects.using(store.alias()).filter(
        status=Task.Status.QUEUED,
        available_at__lte=DbNow(),
        step__in=sorted(steps),
        run__status__in=Run.LIVE,
        run__cancel_at__isnull=True,
    )
    if queues is not None:
        tasks = tasks.filter(queue__in=sorted(queues))
    return list(tasks.order_by("available_at", "id").values_list("id", flat=True)[:limit])


def orphans(model: type[Run] | type[Task]) -> list[Any]:
    """Running rows whose lease is over, or whose process on this host is dead."""
    rows: Any = model._default_manager.using(store.alias()).filter(status="running")
    expired = list(rows.filter(lease_until__lt=DbNow()).order_by("lease_until")[:BATCH])
    prefix = owners.host_prefix()
    if not prefix:
        return expired
    known = {row.pk for row in expired}
    neighbours = rows.filter(owner__startswith=prefix).order_by("lease_until")[:BATCH]
    return expired + [row for row in neighbours if row.pk not in known and owners.is_dead(row.owner)]


def orphaned_children() -> list[uuid.UUID]:
    """Live runs whose parent has ended."""
    ended = [status for status in Run.Status.values if status not in Run.LIVE]
    runs = Run.objects.using(store.alias()).filter(status__in=Run.LIVE, parent__status__in=ended)
    return list(runs.values_list("id", flat=True)[:BATCH])


def runs_with_stranded_tasks() -> list[uuid.UUID]:
    """Ended runs with tasks that have not begun: dispatched while the run was declared dead."""
    ended = [status for status in Run.Status.values if status not in Run.LIVE]
    tasks = Task.objects.using(store.alias()).filter(status=Task.Status.QUEUED, run__status__in=ended)
    return list(tasks.values_list("run_id", flat=True).distinct()[:BATCH])


def asleep_with_reason_gone() -> list[tuple[uuid.UUID, int, str]]:
    """Parked runs (id, doorbell, why) that nothing will wake. There must be none: see the proof in ``context``."""
    open_tasks = Task.objects.filter(run_id=OuterRef("id"), status__in=Task.OPEN)
    unread = Signal.objects.filter(run_id=OuterRef("id"), key=OuterRef("wait_key"), consumed_pos="")
    parked = Run.objects.using(store.alias()).filter(status=Run.Status.SUSPENDED)
    no_task = parked.filter(~Exists(open_tasks), wait_kind="tasks")
    unseen = parked.filter(Exists(unread), wait_kind="signal")
    found = [(pk, bell, "no open task") for pk, bell in no_task.values_list("id", "doorbell")[:BATCH]]
    return found + [
        (pk, bell, "an unread signal") for pk, bell in unseen.values_list("id", "doorbell")[:BATCH]
    ]


def unhinted(model: type[Run] | type[Task], again_after: float) -> list[tuple[uuid.UUID, str]]:
    """Due rows (id, queue) whose hint was never sent or was sent long ago."""
    rows: Any = model._default_manager.using(store.alias()).filter(
        Q(hinted_at__isnull=True) | Q(hinted_at__lt=store.after(-again_after)),
        status="ready" if model is Run else "queued",
        available_at__lte=DbNow(),
    )
    return list(rows.order_by("available_at").values_list("id", "queue")[:BATCH])


def health() -> dict[str, Any]:
    """Counts by status, and how long the oldest due row of each queue has waited."""
    using = store.alias()
    runs = Run.objects.using(using)
    counts = dict(
        runs.filter(status__in=[*Run.LIVE, Run.Status.DEAD]).values_list("status").annotate(n=Count("id"))
    )
    now = database_now(using)
    waiting: dict[str, float] = {}
    due_since = Min("available_at")
    for model, status in ((Run, "ready"), (Task, "queued")):
        rows: Any = model._default_manager.using(using).filter(status=status, available_at__lte=DbNow())
        for queue, since in rows.values_list("queue").annotate(since=due_since):
            waiting[queue] = max(waiting.get(queue, 0.0), (now - since).total_seconds())
    return {
        "oldest_ready_seconds": max(waiting.values(), default=0.0),
        "ready": counts.get("ready", 0),
        "running": counts.get("running", 0),
        "suspended": counts.get("suspended", 0),
        "dead": counts.get("dead", 0),
        "waiting_seconds_by_queue": waiting,
    }
