"""Inline runs whose process died: settled as ``interrupted``, because nobody can go on with them."""

from __future__ import annotations

import datetime as dt
import uuid

from django.db import transaction

from agora_agent.conf import agora_settings
from agora_agent.db import DbNow
from agora_agent.models import AgentRun, write_alias
from agora_agent.models.run import RunQuerySet
from agora_agent.runners.settle import settle
from agora_agent.turn.hooks import Ending

_ENDING = Ending("failed", code="interrupted", detail="the process that executed the run ended")


def stale_runs() -> RunQuerySet:
    """Live inline runs that no process has given a sign of life for, for a whole lease."""
    silent = DbNow() - dt.timedelta(seconds=agora_settings.LEASE_SECONDS)
    queryset: RunQuerySet = AgentRun.objects.filter(durable=False, heartbeat_at__lt=silent).live()
    return queryset


def settle_if_stale(run_id: uuid.UUID) -> bool:
    """Settle this run in the open transaction if its process died; True if it was."""
    return stale_runs().filter(pk=run_id).exists() and settle(run_id, _ENDING)


def settle_stale(limit: int = 100) -> int:
    """Settle what dead processes left, each run in a transaction of its own; how many."""
    settled = 0
    for run_id in list(stale_runs().order_by("depth", "created_at").values_list("pk", flat=True)[:limit]):
        with transaction.atomic(using=write_alias()):
            settled += settle_if_stale(run_id)
    return settled
