"""Inline runs whose process died: settled as ``interrupted``, because nobody can go on with them."""

from __future__ import annotations

import datetime as dt
import logging
import uuid

from django.db import transaction

from agora_agent.conf import agora_settings
from agora_agent.db import DbNow
from agora_agent.governance.locking import retrying
from agora_agent.models import AgentRun, write_alias
from agora_agent.models.run import RunQuerySet
from agora_agent.runners.settle import settle
from agora_agent.turn.history import lock_thread
from agora_agent.turn.hooks import Ending

logger = logging.getLogger("agora_agent.runners")

_ENDING = Ending("failed", code="interrupted", detail="the process that executed the run ended")


def stale_runs() -> RunQuerySet:
    """Live inline runs that no process has given a sign of life for, for a whole lease."""
    silent = DbNow() - dt.timedelta(seconds=agora_settings.LEASE_SECONDS)
    queryset: RunQuerySet = AgentRun.objects.filter(durable=False, heartbeat_at__lt=silent).live()
    return queryset


def settle_if_stale(run_id: uuid.UUID) -> bool:
    """Settle this run in the open transaction if its process died; True if it was."""
    thread = AgentRun.objects.filter(pk=run_id).values_list("thread_id", flat=True).first()
    if thread is None:
        return False
    lock_thread(thread)
    # Taking the owner away fences the process, should it be alive after all.
    return bool(stale_runs().filter(pk=run_id).update(owner="")) and settle(run_id, _ENDING)


def settle_stale(limit: int = 100) -> int:
    """Settle what dead processes left, each run in a transaction of its own; how many."""
    settled = 0
    using = write_alias()
    for run_id in list(stale_runs().order_by("depth", "created_at").values_list("pk", flat=True)[:limit]):

        def end(run_id: uuid.UUID = run_id) -> bool:
            with transaction.atomic(using=using):
                return settle_if_stale(run_id)

        try:
            settled += retrying(end, using)
        except Exception:
            logger.exception("a stale run could not be settled", extra={"run_id": str(run_id)})
    return settled
