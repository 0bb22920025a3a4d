"""A request to stop a run, noted before anything acts on it."""

from __future__ import annotations

import uuid

from django.db.models import F

from agora_agent.db import DbNow
from agora_agent.governance import audit
from agora_agent.models import AgentRun, Thread


def request_cancel(run_id: uuid.UUID, by: str, reason: str) -> bool:
    """Note in the open transaction that the run is to stop; False if it has ended already.

    The thread is locked first, as everything that ends a run does.
    """
    Thread.objects.filter(runs=run_id).update(last_seq=F("last_seq"))
    asked = AgentRun.objects.filter(pk=run_id, status=AgentRun.Status.RUNNING).update(
        cancel_requested_at=DbNow(), cancelled_by=by
    )
    if asked:
        content = {"reason": reason} if reason else {}
        audit.record(run_id, "cancel_requested", subject_ref=by, content=content)
    return bool(asked)
