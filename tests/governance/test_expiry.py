from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agora_agent.governance import ownership
from agora_agent.governance.decisions import expire_due
from agora_agent.models import AuditEntry, Decision
from agora_agent.streaming import frames
from tests.governance.rows import ago, park, start

pytestmark = pytest.mark.django_db


def test_what_is_overdue_expires_once(people: Any) -> None:
    run = start(people.alice)
    late = park(run, "note", "late", expires_at=ago(seconds=1))
    early = park(run, "note", "early", expires_at=timezone.now() + timedelta(minutes=1))
    never = park(run, "note", "never")
    assert (expire_due(), expire_due()) == (1, 0)
    for call, status in ((late, "expired"), (early, "pending_approval"), (never, "pending_approval")):
        call.refresh_from_db()
        assert call.status == status
    decision = Decision.objects.get()
    assert (decision.verdict, decision.principal_ref, decision.via) == ("expire", "", "policy")
    assert [entry.action for entry in AuditEntry.objects.all()] == ["expired"]
    batch = frames.read(run.pk)
    assert batch is not None
    [frame] = batch.frames
    assert frame.data["status"] == "expired"
    assert frame.data["via"] == "policy"
    assert "decidedBy" not in frame.data


def test_a_limit_takes_the_oldest_first(people: Any) -> None:
    run = start(people.alice)
    for minutes in (1, 3, 2):
        park(run, "note", f"c{minutes}", expires_at=ago(minutes=minutes))
    assert expire_due(limit=2) == 2
    assert run.tool_calls.get(status="pending_approval").call_id == "c1"


@pytest.mark.parametrize("fields", [{"status": "failed"}, {"cancel_requested_at": ago(seconds=1)}])
def test_a_run_that_ends_is_left_to_its_end(people: Any, fields: Any) -> None:
    park(start(people.alice, **fields), "note", expires_at=ago(seconds=1))
    assert expire_due() == 0


def test_what_is_overdue_waits_for_nobody(people: Any) -> None:
    park(start(people.alice), "note", expires_at=ago(seconds=1))
    assert not ownership.inbox(people.alice)
