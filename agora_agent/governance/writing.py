"""What a decision writes, in the order of the locks: call, decision, audit entry, frame, and last the wake-up."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

from agora_agent.db import database_now
from agora_agent.exceptions import AlreadyDecided
from agora_agent.governance import audit
from agora_agent.governance.principal import Principal
from agora_agent.governance.standing import STATUS, outcome_of, who
from agora_agent.models import Decision, ToolCall
from agora_agent.streaming import frames
from agora_agent.turn import runner

#: ``via`` of what no person did.
POLICY = "policy"

_CALL_STATUS = {
    Decision.Verdict.APPROVE: ToolCall.Status.APPROVED,
    Decision.Verdict.REJECT: ToolCall.Status.REJECTED,
    Decision.Verdict.EXPIRE: ToolCall.Status.EXPIRED,
}


def conclude(
    call: ToolCall,
    verdict: Decision.Verdict,
    now: dt.datetime,
    using: str,
    principal: Principal | None = None,
    said: tuple[str, str] = ("", ""),
) -> Decision:
    """End the round: the call, the decision, its entry, its frame, then the wake-up. The locks are held."""
    decision = _decision(call, verdict, now, principal, said)
    decided = (
        ToolCall.objects.using(using)
        .filter(pk=call.pk, status__in=ToolCall.PENDING, round=call.round)
        .update(
            status=_CALL_STATUS[verdict],
            decided_by=decision.principal_id,
            decided_ref=decision.principal_ref,
            decided_at=now,
            via=decision.via,
            reason=decision.reason,
        )
    )
    if decided != 1:
        raise AlreadyDecided
    _store(call, decision, "expired" if principal is None else "decided", using, principal, call.signal_key)
    return decision


def conclude_settlement(
    call: ToolCall, reply: dict[str, Any], using: str, principal: Principal, said: tuple[str, str]
) -> Decision:
    earlier = Decision.objects.using(using).filter(tool_call=call.pk, verdict=Decision.Verdict.SETTLE)
    outcome = outcome_of(call)
    since = earlier if outcome is None else earlier.filter(created_at__gte=outcome.created_at)
    attempt = since.count() + 1
    now = database_now(using)
    decision = _decision(call, Decision.Verdict.SETTLE, max(now, call.launched_at or now), principal, said)
    decision.round, decision.is_outcome, decision.reply = earlier.count() + 1, False, reply
    key = f"{call.signal_key}:settle" + (f":{attempt}" if attempt > 1 else "")
    _store(call, decision, "settled_unknown", using, principal, key)
    return decision


def _decision(
    call: ToolCall,
    verdict: Decision.Verdict,
    now: dt.datetime,
    principal: Principal | None,
    said: tuple[str, str],
) -> Decision:
    decision = Decision(
        tool_call=call,
        round=call.round,
        verdict=verdict,
        via=POLICY,
        digest=call.digest,
        created_at=now,
    )
    if principal is not None:
        decision.principal = cast(Any, principal.user)
        decision.principal_ref = principal.ref
        decision.via = principal.via
        decision.auth_method, decision.address = principal.auth_method[:64], principal.address[:64]
        decision.reason, decision.client_label = said
    return decision


def _store(
    call: ToolCall, decision: Decision, action: str, using: str, principal: Principal | None, key: str
) -> None:
    decision.save(using=using, force_insert=True)
    content = {
        "decision": str(decision.pk),
        "verdict": str(decision.verdict),
        "round": decision.round,
        "digest": decision.digest,
    }
    subject = f"call:{call.pk}"
    audit.record(
        call.run_id, action, principal=principal, subject_ref=subject, via=decision.via, content=content
    )
    if decision.is_outcome:
        frames.append(call.run.root_id, [frames.FrameData("decision", _frame(call, decision))])
    runner.get(call.run.durable).wake(call.run_id, key, dedupe=str(decision.pk))


def _frame(call: ToolCall, decision: Decision) -> dict[str, Any]:
    data = {
        "runId": str(call.run_id),
        "id": call.call_id,
        "status": STATUS[Decision.Verdict(decision.verdict)],
        "via": decision.via,
        "round": call.round,
    }
    optional = {"decidedBy": who(decision), "reason": decision.reason}
    return data | {name: value for name, value in optional.items() if value}
