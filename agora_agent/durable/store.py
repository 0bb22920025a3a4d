"""The statements on runs, their journal and their signals; those on tasks are in ``taskstore``.

No function here opens a transaction: those of several statements need an open one. The first statement of the
engine in a transaction is the one that locks: task, then run, then parent, then signals and journal. In an UPDATE a
CASE stands before the column it reads, because MySQL evaluates assignments from left to right.
"""

from __future__ import annotations

import datetime as dt
import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connections, router
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce

from agora_agent import codec
from agora_agent.db import DbNow, KeyField
from agora_agent.durable.models import Journal, Run, RunBody, Signal
from agora_agent.durable.values import SignalInfo

Status = Run.Status


def alias() -> str:
    """The database of the engine's tables."""
    return router.db_for_write(Run)


def new_token() -> str:
    """What one attempt to write is recognised by."""
    return secrets.token_hex(16)


def after(seconds: float) -> Any:
    """The database's clock, ``seconds`` from now."""
    return DbNow() + Value(dt.timedelta(seconds=seconds))


@dataclass(frozen=True)
class Claim:
    """A run in the hands of one driver. ``doorbell`` was read before the journal: parking depends on it."""

    run_id: uuid.UUID
    epoch: int
    owner: str
    doorbell: int
    pending_tasks: int
    cancelled: bool
    workflow: str
    version: int
    patch_level: int
    queue: str
    tenant: str
    actor_id: str
    parent_id: uuid.UUID | None
    root_id: uuid.UUID
    depth: int
    wait_pos: str
    wait_name: str
    input: str


@dataclass(frozen=True)
class Entry:
    """A row of the journal, written or to be written."""

    pos: str
    name: str
    kind: str
    payload: str
    ok: bool = True
    token: str = ""


# Start


def insert_run(
    run_id: uuid.UUID,
    workflow: str,
    version: int,
    input_text: str,
    *,
    queue: str,
    tenant: str,
    actor_id: str,
    parent: Claim | None = None,
    parent_pos: str = "",
) -> None:
    """Two inserts; ``IntegrityError`` if the run exists."""
    using = alias()
    Run.objects.using(using).create(
        id=run_id,
        workflow=workflow,
        version=version,
        queue=queue,
        tenant=tenant,
        actor_id=actor_id,
        parent_id=parent.run_id if parent else None,
        parent_pos=parent_pos,
        root_id=parent.root_id if parent else run_id,
        depth=parent.depth + 1 if parent else 0,
    )
    RunBody.objects.using(using).create(run_id=run_id, input=input_text)


# Claim, load, park


def claimable(workflows: Mapping[tuple[str, int], Any], patches: int, queues: Iterable[str] | None) -> Q:
    """Runs that a process may drive: whose code, patches and queue it has."""
    known = Q(pk__in=[])
    for name, version in workflows:
        known |= Q(workflow=name, version=version)
    mine = known & (Q(patch_level__isnull=True) | Q(patch_level__lte=patches))
    return mine if queues is None else mine & Q(queue__in=sorted(queues))


def claim_run(run_id: uuid.UUID, owner: str, lease: float, patches: int, mine: Q) -> bool:
    """One conditional update; False if somebody else has it or there is nothing to do."""
    return bool(
        Run.objects.using(alias())
        .filter(mine, id=run_id, status=Status.READY, available_at__lte=DbNow())
        .update(
            status=Status.RUNNING,
            epoch=F("epoch") + 1,
            owner=owner,
            lease_until=after(lease),
            hinted_at=None,
            started_at=Coalesce("started_at", DbNow()),
            patch_level=Coalesce("patch_level", Value(patches)),
        )
    )


def read_claim(run_id: uuid.UUID, owner: str) -> Claim | None:
    """The claim that ``owner`` holds, with the doorbell as it is now; None if it holds none."""
    run = (
        Run.objects.using(alias())
        .select_related("body")
        .filter(id=run_id, owner=owner, status=Status.RUNNING)
        .first()
    )
    if run is None:
        return None
    return Claim(
        run_id=run.id,
        epoch=run.epoch,
        owner=owner,
        doorbell=run.doorbell,
        pending_tasks=run.pending_tasks,
        cancelled=run.cancel_at is not None,
        workflow=run.workflow,
        version=run.version,
        patch_level=run.patch_level or 0,
        queue=run.queue,
        tenant=run.tenant,
        actor_id=run.actor_id,
        parent_id=run.parent_id,
        root_id=run.root_id,
        depth=run.depth,
        wait_pos=run.wait_pos,
        wait_name=f"signal:{run.wait_key}" if run.wait_kind == "signal" else run.wait_key,
        input=run.body.input,
    )


def load_journal(run_id: uuid.UUID) -> dict[str, Entry]:
    """Every row of the run, in one statement."""
    rows = (
        Journal.objects.using(alias())
        .filter(run_id=run_id)
        .order_by("pos")
        .values_list("pos", "name", "kind", "payload", "ok", "token")
    )
    return {row[0]: Entry(*row) for row in rows}


def park(claim: Claim, kind: str, key: str, pos: str) -> bool:
    """Compare-and-set: False if something rang, was cancelled or took over since the claim was read."""
    return bool(
        Run.objects.using(alias())
        .filter(
            id=claim.run_id,
            epoch=claim.epoch,
            status=Status.RUNNING,
            doorbell=claim.doorbell,
            cancel_at__isnull=True,
        )
        .update(
            status=Status.SUSPENDED, owner="", lease_until=None, wait_kind=kind, wait_key=key, wait_pos=pos
        )
    )


def release(claim: Claim) -> bool:
    """Back to ready without a crash counted: for another process, or for another go of this one."""
    return bool(
        Run.objects.using(alias())
        .filter(id=claim.run_id, epoch=claim.epoch, status=Status.RUNNING, owner=claim.owner)
        .update(status=Status.READY, owner="", lease_until=None, available_at=DbNow())
    )


def end_lease(claim: Claim) -> bool:
    """Give the claim to the sweeper, which counts it as a crash and takes the run over."""
    return bool(
        Run.objects.using(alias())
        .filter(id=claim.run_id, epoch=claim.epoch, status=Status.RUNNING, owner=claim.owner)
        .update(lease_until=DbNow())
    )


# Journal


def insert_fenced(claim: Claim, entries: list[Entry], *, uncancelled: bool = False) -> bool:
    """Write rows if the claim still holds: one statement, which locks the run row until the transaction ends.

    False if fenced (or, with ``uncancelled``, if a cancel was asked for).
    """
    condition = "r.epoch = %s AND r.status = 'running'" + (" AND r.cancel_at IS NULL" if uncancelled else "")
    return _insert_from_run(claim.run_id, entries, condition, [claim.epoch]) == len(entries)


def insert_entry(run_id: uuid.UUID, entry: Entry) -> None:
    """Write a row of a run whose row this transaction has already locked by an update."""
    _insert_from_run(run_id, [entry], "1 = 1", [])


def _insert_from_run(run_id: uuid.UUID, entries: list[Entry], condition: str, params: list[Any]) -> int:
    connection = connections[alias()]
    vendor = connection.vendor
    text = "%s::text" if vendor == "postgresql" else "%s"
    # without the lock a claim may commit between this statement's read and its insert, and the new driver
    # would not see the row that appears a moment later
    lock = {"postgresql": " FOR SHARE OF r", "mysql": " LOCK IN SHARE MODE"}.get(vendor, "")
    columns = ("pos", "name", "kind", "payload", "token")
    values: list[Any] = []
    selects = []
    for entry in entries:
        named = ", ".join(f"{text} AS {column}" for column in columns)
        selects.append(f"SELECT {named}, {'TRUE' if entry.ok else 'FALSE'} AS ok")
        values += [entry.pos, entry.name, entry.kind, entry.payload, entry.token]
    id_value = Run._meta.pk.get_db_prep_value(run_id, connection)
    sql = (
        f"INSERT INTO {Journal._meta.db_table} (run_id, epoch, codec, {', '.join(columns)}, ok) "  # noqa: S608
        f"SELECT r.id, r.epoch, {codec.VERSION}, v.pos, v.name, v.kind, v.payload, v.token, v.ok "
        f"FROM {Run._meta.db_table} r CROSS JOIN ({' UNION ALL '.join(selects)}) v "
        f"WHERE r.id = %s AND {condition}{lock}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*values, id_value, *params])
        return int(cursor.rowcount)


def entry_at(run_id: uuid.UUID, pos: str) -> Entry | None:
    """The row at one position."""
    row = (
        Journal.objects.using(alias())
        .filter(run_id=run_id, pos=pos)
        .values_list("pos", "name", "kind", "payload", "ok", "token")
        .first()
    )
    return Entry(*row) if row else None


def holds(claim: Claim) -> bool:
    """True if the claim still holds; locks the run row until the transaction ends."""
    return share_lock(Run._meta.db_table, claim.run_id, claim.epoch)


def share_lock(table: str, row_id: uuid.UUID, epoch: int) -> bool:
    """True if a running row is at this epoch; it stays so until the transaction ends."""
    connection = connections[alias()]
    lock = {"postgresql": " FOR SHARE", "mysql": " LOCK IN SHARE MODE"}.get(connection.vendor, "")
    id_value = Run._meta.pk.get_db_prep_value(row_id, connection)
    sql = f"SELECT 1 FROM {table} WHERE id = %s AND epoch = %s AND status = 'running'{lock}"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(sql, [id_value, epoch])
        return cursor.fetchone() is not None


# Doorbell, signals


def ring(run_id: uuid.UUID) -> bool:
    """A fact for the run follows in this transaction: wake it if it is parked. False if it has ended."""
    parked = Q(status=Status.SUSPENDED)
    return bool(
        Run.objects.using(alias())
        .filter(id=run_id, status__in=Run.LIVE)
        .update(
            available_at=Case(When(parked, then=DbNow()), default=F("available_at")),
            status=Case(
                When(parked, then=Value(Status.READY.value)), default=F("status"), output_field=KeyField()
            ),
            doorbell=F("doorbell") + 1,
        )
    )


def insert_signal(run_id: uuid.UUID, key: str, dedupe: str, payload: str, actor: str = "") -> None:
    """``IntegrityError`` if this fact was sent before."""
    Signal.objects.using(alias()).create(run_id=run_id, key=key, dedupe=dedupe, payload=payload, actor=actor)


def unread(run_id: uuid.UUID, key: str) -> list[SignalInfo]:
    """The signals under a key that no wait has consumed, oldest first."""
    rows = (
        Signal.objects.using(alias())
        .filter(run_id=run_id, key=key, consumed_pos="")
        .order_by("id")
        .values_list("id", "key", "dedupe", "payload")
    )
    return [SignalInfo(pk, key, dedupe, codec.decode(text)) for pk, key, dedupe, text in rows]


def consume(signal_id: int, pos: str) -> bool:
    """Mark a signal as read at ``pos``."""
    return bool(Signal.objects.using(alias()).filter(id=signal_id, consumed_pos="").update(consumed_pos=pos))


def discard(signal_id: int) -> None:
    """Remove a signal that no fact stands behind."""
    Signal.objects.using(alias()).filter(id=signal_id, consumed_pos="").delete()


# The end


def end_run(
    run_id: uuid.UUID,
    status: str,
    where: Q,
    *,
    output: str | None = None,
    code: str = "",
    detail: str = "",
    outside: bool = False,
    cancel_by: str = "",
    cancel_reason: str = "",
) -> bool:
    """The terminal write of a run where ``where`` holds; False (then undo the rest) if it does not.

    ``outside``: by somebody who does not hold the claim, so the epoch moves and fences whoever does.
    """
    from agora_agent.durable.taskstore import cancel_queued

    using = alias()
    cancel_queued(run_id)
    changes: dict[str, Any] = {
        "status": status,
        "lease_until": None,
        "pending_tasks": 0,
        "doorbell": F("doorbell") + 1,
        "finished_at": DbNow(),
    }
    if outside:
        changes |= {"epoch": F("epoch") + 1, "owner": ""}
    if status == Status.CANCELLED:
        changes["cancel_at"] = Coalesce("cancel_at", DbNow())
        if cancel_by or cancel_reason:
            changes |= {"cancel_by": cancel_by, "cancel_reason": cancel_reason}
    runs = Run.objects.using(using).filter(id=run_id)
    if not runs.filter(where).update(**changes):
        return False
    RunBody.objects.using(using).filter(run_id=run_id).update(
        output=output, error_code=code, error_detail=detail
    )
    return True


def tell_parent(parent_id: uuid.UUID, child_id: uuid.UUID) -> bool:
    """A child's end, in the transaction that ends it. False if the parent has ended."""
    if not ring(parent_id):
        return False
    insert_signal(parent_id, f"child:{child_id}", "1", "null")
    return True


def ask_cancel(run_id: uuid.UUID, by: str, reason: str) -> bool:
    """Leave a request for the driver of a running run."""
    return bool(
        Run.objects.using(alias())
        .filter(id=run_id, status=Status.RUNNING, cancel_at__isnull=True)
        .update(cancel_at=DbNow(), cancel_by=by, cancel_reason=reason, doorbell=F("doorbell") + 1)
    )
