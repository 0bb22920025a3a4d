"""Drive a run: claim it, replay its code over its journal, advance it until it parks or ends."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.db import DatabaseError, close_old_connections, connections, transaction

from agora_agent.durable import endings, execution, faults, owners, store, transactions
from agora_agent.durable.context import Context
from agora_agent.durable.failures import LEFT, describe, is_error
from agora_agent.durable.leases import Held
from agora_agent.durable.models import Run
from agora_agent.durable.recorder import Again
from agora_agent.exceptions import ControlFlow, RunCancelled, is_replay_integrity_error

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")

#: Replays in one claim because something rang just before parking; then others get their turn.
AGAIN_LIMIT = 50


@contextlib.contextmanager
def _own_connection(engine: Engine) -> Iterator[None]:
    """Work that opens its own transactions: refused inside another's, on a connection that is not stale."""
    if not engine.durable:
        yield
        return
    if connections[store.alias()].in_atomic_block:
        raise transaction.TransactionManagementError(
            "runs and tasks are never worked on inside a transaction"
        )
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def execute_task(engine: Engine, task_id: uuid.UUID) -> bool:
    """Work off a hint for a task; False if it was stale or its queue is not served here."""
    with _own_connection(engine):
        try:
            return execution.run_hinted(engine, task_id)
        except LEFT:
            return False


def drive(engine: Engine, run_id: uuid.UUID) -> bool:
    """Work off a hint for a run; False if there was nothing to claim.

    What a workflow raises ends its run and is not raised here.
    """
    with _own_connection(engine):
        try:
            return _drive(engine, run_id)
        except LEFT:
            return False


def _drive(engine: Engine, run_id: uuid.UUID) -> bool:
    owner = owners.new_owner()
    mine = engine.claimable()
    claimed = transactions.statement(
        lambda: store.claim_run(run_id, owner, engine.lease_seconds, engine.patch_count, mine),
        using=store.alias(),
        recognise=lambda: store.read_claim(run_id, owner) is not None or None,
    )
    # the doorbell is read here, before the journal: parking depends on that order
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
    held.allow(engine.step_deadline_seconds)
    if claim.cancelled:
        endings.settle_held(engine, claim, Run.Status.CANCELLED)
        return False
    context = Context(engine, claim, held)
    error: BaseException | None = None
    try:
        context.end(engine.body(claim.workflow, claim.version)(context, context.input))
    except BaseException as raised:
        if not is_error(raised) and not isinstance(raised, ControlFlow):
            raise
        # what the context decided stands, whatever the workflow made of it
        error = context.closed or raised
    if error is None:
        return False
    if isinstance(error, Again):
        return True
    if is_replay_integrity_error(error):
        logger.error("a replay diverged", extra={"run": str(claim.run_id), "error": str(error)})
        _fail(engine, claim, "replay_diverged", str(error))
    elif transactions.is_transient(error, store.alias()):
        # The database was away: the run is not to blame. Its journal stands, and the sweeper takes it up again.
        logger.warning("a drive was cut short", exc_info=error, extra={"run": str(claim.run_id)})
        _give_up(claim)
    elif not isinstance(error, ControlFlow):
        logger.error("a workflow raised", exc_info=error, extra={"run": str(claim.run_id)})
        _fail(engine, claim, "run_failed", describe(error))
    elif isinstance(error, RunCancelled) and not held.lost:
        endings.settle_held(engine, claim, Run.Status.CANCELLED)
    return False


def _give_up(claim: store.Claim) -> None:
    """Let the lease end now instead of later; it ends by itself where the database is still away."""
    transactions.refresh(store.alias())
    try:
        store.end_lease(claim)
    except DatabaseError:
        logger.info("a lease could not be given back", extra={"run": str(claim.run_id)})


def _fail(engine: Engine, claim: store.Claim, code: str, detail: str) -> None:
    if not endings.settle_held(engine, claim, Run.Status.FAILED, code, detail):
        # cancelled meanwhile, or lost: then this matches nothing either
        endings.settle_held(engine, claim, Run.Status.CANCELLED)
