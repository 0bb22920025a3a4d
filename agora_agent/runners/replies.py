"""What a wait finds: the stored decision. Signals and events only say when to look."""

from __future__ import annotations

import uuid
from typing import Any

from agora_agent.governance.standing import outcome_of
from agora_agent.models import Decision, ToolCall

_STATUS = {
    Decision.Verdict.APPROVE: "approved",
    Decision.Verdict.REJECT: "rejected",
    Decision.Verdict.EXPIRE: "expired",
}


def read_decision(call_pk: uuid.UUID, round_number: int) -> dict[str, Any] | None:
    """The outcome of one round of a call, or None while nobody has decided."""
    row = Decision.objects.filter(
        tool_call_id=call_pk, round=round_number, is_outcome=True, verdict__in=_STATUS
    ).first()
    if row is None:
        return None
    status = _STATUS[Decision.Verdict(row.verdict)]
    return {"status": status, "decisionId": row.pk, "reason": row.reason, "by": row.principal_ref}


def read_settlement(call_pk: uuid.UUID, attempt: int) -> dict[str, Any] | None:
    """What a person said became of the ``attempt``-th execution whose outcome nobody knew."""
    rows = Decision.objects.filter(tool_call_id=call_pk, verdict=Decision.Verdict.SETTLE)
    approval = outcome_of(ToolCall.objects.get(pk=call_pk))
    if approval is not None:
        rows = rows.filter(created_at__gte=approval.created_at)  # an earlier round's are not this one's
    row = rows.order_by("created_at", "id")[attempt - 1 : attempt].first()
    if row is None:
        return None
    reply = row.reply or {}
    return {**reply, "decisionId": row.pk, "reason": row.reason, "by": row.principal_ref}
