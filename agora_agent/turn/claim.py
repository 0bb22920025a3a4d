"""The claim of a tool call: the checkpoint in which a call becomes a row and, where people decide, a form."""

from __future__ import annotations

import datetime as dt
from typing import Any

from agora_agent.db import database_now
from agora_agent.exceptions import RunCancelled
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
            _wait(turn)
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
        return _claimed(row, assessment)

    return LocalStep(f"persist:toolcall:{call['id']}", commit, lambda: deps.assess(turn, call))


def claim_again_step(
    deps: AgentLoopDeps, turn: TurnInput, sink: RunSink, claimed: dict[str, Any], round_number: int
) -> LocalStep:
    """``persist:toolcall:<id>:<round>``: the tool is no longer what was claimed, so its gates are asked again."""

    def prepare() -> Assessment:
        call = {key: claimed[key] for key in ("id", "name", "kind", "input", "tier", "approver")}
        return deps.assess(turn, call)

    def commit(assessment: Assessment) -> dict[str, Any]:
        if assessment.verdict == "refuse":
            return {**claimed, "verdict": "refuse", "error": assessment.error}
        if assessment.verdict == "ask":
            _wait(turn)
        row = ToolCall.objects.get(pk=claimed["pk"])
        fields = {
            "round": round_number,
            "status": _STATUS[assessment.verdict],
            "input": assessment.arguments,
            "identity": assessment.identity,
            "digest": assessment.digest,
            "module": assessment.module[:190],
            "tier": assessment.tier,
            "approver": assessment.approver,
            "preview": assessment.preview,
            "at_most_once": assessment.at_most_once,
            "expires_at": _expiry(assessment),
            "decided_by": None,
            "decided_ref": "",
            "decided_at": None,
            "via": "",
            "reason": "",
        }
        unlaunched = (ToolCall.Status.APPROVED, ToolCall.Status.AUTO_EXECUTED)
        if not ToolCall.objects.filter(pk=row.pk, status__in=unlaunched).update(**fields):
            raise RunCancelled("the call was settled meanwhile")
        for name, value in fields.items():
            setattr(row, name, value)
        if row.kind == ToolCall.Kind.ACTION:
            deps.audit(turn.run_id, "requested", _audited(row))
        if assessment.verdict == "ask":
            sink.append(approval_frame(row, assessment))
        return _claimed(row, assessment)

    return LocalStep(f"persist:toolcall:{claimed['id']}:{round_number}", commit, prepare)


def _claimed(row: ToolCall, assessment: Assessment) -> dict[str, Any]:
    """What the loop steers by from here on, as journaled."""
    return {
        "pk": row.pk,
        "id": row.call_id,
        "name": row.tool_name,
        "kind": row.kind,
        "verdict": assessment.verdict,
        "input": row.input,
        "tier": row.tier,
        "approver": row.approver,
        "atMostOnce": row.at_most_once,
        "queue": assessment.queue,
        "maxSteps": assessment.max_steps,
        "signalKey": row.signal_key,
    }


def _wait(turn: TurnInput) -> None:
    waits = AgentRun.objects.filter(pk=turn.run_id, status=AgentRun.Status.RUNNING).update(
        phase=AgentRun.Phase.WAITING
    )
    if not waits:
        raise RunCancelled("the run was ended before its call could wait")


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
