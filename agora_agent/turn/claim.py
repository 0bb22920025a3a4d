"""The claim of a tool call: the checkpoint in which a call becomes a row and, where people decide, a form."""

from __future__ import annotations

import datetime as dt
from typing import Any

from agora_agent.db import database_now
from agora_agent.models import AgentRun, ToolCall
from agora_agent.turn.hooks import AgentLoopDeps, Assessment, Frame, LocalStep, RunSink, TurnInput

_STATUS = {
    "run": ToolCall.Status.AUTO_EXECUTED,
    "ask": ToolCall.Status.PENDING_APPROVAL,
    "refuse": ToolCall.Status.FAILED,
}


def claim_step(
    deps: AgentLoopDeps, turn: TurnInput, sink: RunSink, step: int, place: int, call: dict[str, Any]
) -> LocalStep:
    """``persist:toolcall:<id>``: the gates' verdict, the row, the tool-call frame and the approval frame.

    The kind comes from the model step that offered the tool: a process without the tool parks an action all the same.
    """

    def commit(assessment: Assessment) -> dict[str, Any]:
        row = ToolCall(
            run_id=turn.run_id,
            call_id=call["id"],
            step=step,
            index=place,
            tool_name=call["name"][:64],
            kind=call["kind"],
            status=_STATUS[assessment.verdict],
            input=assessment.arguments,
            identity=assessment.identity,
            digest=assessment.digest,
            module=assessment.module[:190],
            tier=assessment.tier,
            approver=assessment.approver,
            preview=assessment.preview,
            at_most_once=assessment.at_most_once,
            expires_at=_expiry(assessment),
            error=assessment.error if assessment.verdict == "refuse" else "",
        )
        if assessment.verdict == "ask":
            AgentRun.objects.filter(pk=turn.run_id).update(phase=AgentRun.Phase.WAITING)
        row.save(force_insert=True)
        frames: list[Frame] = [
            (
                "tool-call",
                {
                    "runId": str(turn.run_id),
                    "id": row.call_id,
                    "toolName": row.tool_name,
                    "kind": row.kind,
                    "input": row.input,
                },
            )
        ]
        if row.kind == ToolCall.Kind.ACTION:
            deps.audit(turn.run_id, "requested", _audited(row))
        if assessment.verdict == "ask":
            frames.append(approval_frame(row, assessment))
        sink.append(*frames)
        return {
            "pk": row.pk,
            "id": row.call_id,
            "name": row.tool_name,
            "kind": row.kind,
            "verdict": assessment.verdict,
            "input": row.input,
            "atMostOnce": row.at_most_once,
            "queue": assessment.queue,
            "signalKey": row.signal_key,
        }

    return LocalStep(f"persist:toolcall:{call['id']}", commit, lambda: deps.assess(turn, call))


def ask_again_step(
    deps: AgentLoopDeps, turn: TurnInput, sink: RunSink, claimed: dict[str, Any], round_number: int
) -> LocalStep:
    """``persist:toolcall:<id>:<round>``: the tool is no longer what was approved, so the call asks again."""

    def prepare() -> Assessment:
        call = {key: claimed[key] for key in ("id", "name", "kind", "input")}
        return deps.assess(turn, call)

    def commit(assessment: Assessment) -> dict[str, Any]:
        if assessment.verdict == "refuse":
            return {**claimed, "verdict": "refuse", "error": assessment.error}
        AgentRun.objects.filter(pk=turn.run_id).update(phase=AgentRun.Phase.WAITING)
        row = ToolCall.objects.get(pk=claimed["pk"])
        row.round = round_number
        row.status = ToolCall.Status.PENDING_APPROVAL
        row.input, row.identity, row.digest = assessment.arguments, assessment.identity, assessment.digest
        row.tier, row.approver = assessment.tier or row.tier, assessment.approver or row.approver
        row.preview, row.expires_at = assessment.preview, _expiry(assessment)
        changed = ToolCall.objects.filter(pk=row.pk, status=ToolCall.Status.APPROVED).update(
            round=row.round,
            status=row.status,
            input=row.input,
            identity=row.identity,
            digest=row.digest,
            tier=row.tier,
            approver=row.approver,
            preview=row.preview,
            expires_at=row.expires_at,
            decided_by=None,
            decided_ref="",
            decided_at=None,
            via="",
            reason="",
        )
        if not changed:
            return {**claimed, "verdict": "refuse", "error": "The call was settled meanwhile."}
        deps.audit(turn.run_id, "requested", _audited(row))
        sink.append(approval_frame(row, assessment))
        return {**claimed, "verdict": "ask", "input": row.input, "signalKey": row.signal_key}

    return LocalStep(f"persist:toolcall:{claimed['id']}:{round_number}", commit, prepare)


def approval_frame(row: ToolCall, assessment: Assessment) -> Frame:
    """The form that people answer. ``runId`` is the run that is parked, not the stream's."""
    data: dict[str, Any] = {
        "kind": "approval",
        "runId": str(row.run_id),
        "id": row.call_id,
        "toolName": row.tool_name,
        "input": row.input,
        "tier": row.tier,
        "approver": row.approver,
        "waitingFor": list(assessment.waiting_for),
        "digest": row.digest,
        "round": row.round,
    }
    if row.expires_at:
        data["expiresAt"] = row.expires_at.isoformat()
    if row.preview:
        data["preview"] = row.preview
    return "approval", data


def _expiry(assessment: Assessment) -> dt.datetime | None:
    if assessment.expires_seconds is None or assessment.verdict != "ask":
        return None
    from django.db import router

    return database_now(router.db_for_write(ToolCall)) + dt.timedelta(seconds=assessment.expires_seconds)


def _audited(row: ToolCall) -> dict[str, Any]:
    return {
        "callId": row.call_id,
        "round": row.round,
        "tool": row.tool_name,
        "digest": row.digest,
        "tier": row.tier,
        "approver": row.approver,
    }
