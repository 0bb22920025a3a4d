"""How a run ends: whoever ends it writes its status, its result and its parent's notice in one transaction."""

from __future__ import annotations

import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Q

from agora_agent.durable import lookups, store, transactions
from agora_agent.durable.leases import CANCELLED
from agora_agent.durable.models import Run
from agora_agent.exceptions import Busy

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")

CANCEL_ATTEMPTS = 20


class Refused(Exception):
    """The terminal write matched no row: undo what stood before it."""


def held_by(claim: store.Claim, *, uncancelled: bool) -> Q:
    """The run as its driver may end it."""
    where = Q(epoch=claim.epoch, status=Run.Status.RUNNING)
    return where & Q(cancel_at__isnull=True) if uncancelled else where


def write(
    engine: Engine,
    run_id: uuid.UUID,
    parent_id: uuid.UUID | None,
    status: str,
    where: Q,
    *,
    output: str | None = None,
    code: str = "",
    detail: str = "",
    outside: bool = False,
    by: str = "",
    reason: str = "",
) -> None:
    """The engine's part of a terminal transaction; ``Refused`` if the run is not as ``where`` says."""
    if not store.end_run(
        run_id,
        status,
        where,
        output=output,
        code=code,
        detail=detail,
        outside=outside,
        cancel_by=by,
        cancel_reason=reason,
    ):
        raise Refused
    if parent_id is not None and store.tell_parent(parent_id, run_id):
        engine.hint_run(parent_id)

    def after_commit() -> None:
        if status != Run.Status.COMPLETED:
            cancel_children(engine, run_id)
        logger.info("run ended", extra={"run": str(run_id), "status": status, "code": code})

    transaction.on_commit(after_commit, using=store.alias(), robust=True)


def settle(
    engine: Engine,
    run_id: uuid.UUID,
    parent_id: uuid.UUID | None,
    status: str,
    where: Q,
    *,
    code: str = "",
    detail: str = "",
    outside: bool = False,
    by: str = "",
    reason: str = "",
) -> None:
    """End a run that no body ended: the host first, in the same open transaction."""
    if engine.on_terminal is not None:
        engine.on_terminal(run_id, status, code, detail)
    write(
        engine,
        run_id,
        parent_id,
        status,
        where,
        code=code,
        detail=detail,
        outside=outside,
        by=by,
        reason=reason,
    )


def settle_held(engine: Engine, claim: store.Claim, status: str, code: str = "", detail: str = "") -> bool:
    """The driver ends its run without the body; False if it is not its run any more."""
    where = held_by(claim, uncancelled=status not in (Run.Status.CANCELLED, Run.Status.DEAD))
    try:
        transactions.transact(
            lambda: settle(engine, claim.run_id, claim.parent_id, status, where, code=code, detail=detail),
            using=store.alias(),
            durable=engine.durable,
            recognise=lambda: lookups.ended_by(claim) or None,
        )
    except Refused:
        return lookups.ended_by(claim)
    return True


def cancel(engine: Engine, run_id: uuid.UUID, by: str, reason: str) -> bool:
    """End a run that nobody drives, or ask its driver to; False if it has ended already."""
    using = store.alias()
    for _ in range(CANCEL_ATTEMPTS):
        standing = lookups.standing(run_id)
        if standing is None or standing.status not in Run.LIVE:
            return False
        if standing.status == Run.Status.RUNNING:
            done = standing.cancelled or transactions.joined(
                partial(store.ask_cancel, run_id, by, reason), using=using
            )
        else:
            done = _cancel_asleep(engine, run_id, standing.parent_id, by, reason)
        if done:
            break
    else:
        # only where the caller's transaction keeps showing an old status
        raise Busy("the run changes faster than it can be cancelled: try again")

    def after_commit() -> None:
        engine.leases.abort(run_id, CANCELLED)
        cancel_children(engine, run_id)

    transaction.on_commit(after_commit, using=using, robust=True)
    return True


def _cancel_asleep(
    engine: Engine, run_id: uuid.UUID, parent_id: uuid.UUID | None, by: str, reason: str
) -> bool:
    asleep = Q(status__in=[Run.Status.READY, Run.Status.SUSPENDED])
    work = partial(
        settle,
        engine,
        run_id,
        parent_id,
        Run.Status.CANCELLED,
        asleep,
        outside=True,
        by=by,
        reason=reason,
    )
    try:
        transactions.joined(work, using=store.alias())
    except Refused:
        return False  # it was claimed, or it ended, since we looked
    return True


def cancel_children(engine: Engine, run_id: uuid.UUID) -> int:
    """Cancel what a run has spawned, breadth first, one transaction for each."""
    level, seen, count = [run_id], {run_id}, 0
    while level:
        children = [child for child in lookups.live_children(level) if child not in seen]
        for child in children:
            try:
                count += cancel(engine, child, "", "its parent ended")
            except Exception:
                logger.exception(
                    "a child could not be cancelled; the sweeper will", extra={"run": str(child)}
                )
        seen.update(children)
        level = children
    return count
