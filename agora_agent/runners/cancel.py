"""A request to stop a run, noted before anything acts on it."""

from __future__ import annotations

import uuid

from django.db.models import F

from agora_agent.db import DbNow
from agora_agent.governance.cancel import record_cancel
from agora_agent.governance.principal import Principal
from agora_agent.models import AgentRun, Thread


def request_cancel(run_id: uuid.UUID, by: str, principal: Principal | None) -> str | None:
    """Note in the open transaction that the run is to stop. The first request stands.

    Returns:
        Who asked first; None if the run has ended already.

    The thread is locked first, as everything that ends a run does.
    """
    Thread.objects.filter(runs=run_id).update(last_seq=F("last_seq"))
    by = principal.ref if principal is not None else by
    live = AgentRun.objects.filter(pk=run_id, status=AgentRun.Status.RUNNING)
    if live.filter(cancel_requested_at=None).update(cancel_requested_at=DbNow(), cancelled_by=by):
        record_cancel(run_id, principal, by)
        return by
    first: str | None = live.values_list("cancelled_by", flat=True).first()
    return first
