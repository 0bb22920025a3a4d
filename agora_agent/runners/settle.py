"""The end of a run, whoever brings it about: rows, calls, thread and stream settle in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from django.conf import settings

from agora_agent.db import DbNow
from agora_agent.exceptions import reader_message
from agora_agent.governance import audit
from agora_agent.models import AgentRun, Thread, ToolCall, Usage
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData
from agora_agent.turn.history import NOT_EXECUTED, UNKNOWN, result_frame
from agora_agent.turn.hooks import Ending

_Status = ToolCall.Status


def settle(run_id: uuid.UUID, ending: Ending) -> bool:
    """End a run in the open transaction. The first end stands.

    A run that is stopped or fails takes its live descendants with it, settles what their calls left open (a launched
    action becomes ``interrupted``: nobody knows its effect) and tells the stream about each before it ends it.

    Returns:
        False if the run had ended before or is gone: then nothing was written.
    """
    run = AgentRun.objects.only("id", "thread_id", "parent_id", "root_id").filter(pk=run_id).first()
    if run is None:
        return False
    Thread.objects.filter(pk=run.thread_id, active_run_id=run_id).update(
        active_run_id=None, updated_at=DbNow()
    )
    ended = AgentRun.objects.filter(pk=run_id, status=AgentRun.Status.RUNNING).update(
        status=ending.status,
        phase=AgentRun.Phase.ENDED,
        finish_reason=ending.finish_reason,
        answer=ending.answer,
        error_code=ending.code,
        error_detail=ending.detail[:4000],
        cancelled_by=ending.by,
        finished_at=DbNow(),
        owner="",
    )
    if not ended:
        return False
    last: list[FrameData] = []
    if ending.status != AgentRun.Status.COMPLETED:
        descendants = _end_descendants(run_id)
        for stopped in [*reversed(descendants), run_id]:
            failed = stopped == run_id and ending.status == AgentRun.Status.FAILED
            last.extend(_settle_calls(stopped, _Status.FAILED if failed else _Status.CANCELLED))
        Usage.objects.filter(run_id__in=[run_id, *descendants], state=Usage.State.OPEN).update(
            state=Usage.State.UNKNOWN
        )
    if run.parent_id is not None:
        frames.append(run.root_id, last)
        return True
    if ending.status == AgentRun.Status.CANCELLED:
        last.append(FrameData("cancelled", {"kind": "cancelled", "runId": str(run_id)}))
    if ending.status == AgentRun.Status.FAILED:
        message = reader_message(ending.code, ending.detail, expose=settings.DEBUG)
        frames.close(run.root_id, "error", {"code": ending.code, "message": message}, last)
    else:
        frames.close(run.root_id, "done", {}, last)
    return True


def _end_descendants(run_id: uuid.UUID) -> list[uuid.UUID]:
    """Cancel the live runs below ``run_id``, parents before children."""
    ended: list[uuid.UUID] = []
    level = [run_id]
    while level:
        children = list(
            AgentRun.objects.filter(parent_id__in=level, status=AgentRun.Status.RUNNING)
            .order_by("id")
            .values_list("pk", "thread_id")
        )
        level = []
        for child, thread in children:
            Thread.objects.filter(pk=thread, active_run_id=child).update(active_run_id=None)
            if AgentRun.objects.filter(pk=child, status=AgentRun.Status.RUNNING).update(
                status=AgentRun.Status.CANCELLED, phase=AgentRun.Phase.ENDED, finished_at=DbNow(), owner=""
            ):
                level.append(child)
        ended.extend(level)
    return ended


def _settle_calls(run_id: uuid.UUID, status: str) -> Iterator[FrameData]:
    """Settle what is open, and give each announced call the one result frame that it has not had."""
    calls = ToolCall.objects.filter(run_id=run_id, told=False).order_by("step", "index")
    for call in calls:
        if call.status in ToolCall.UNSETTLED:
            launched = call.status in (_Status.EXECUTING, _Status.INTERRUPTED)
            outcome = _Status.INTERRUPTED if launched else status
            error = UNKNOWN if launched else NOT_EXECUTED
            changed = ToolCall.objects.filter(pk=call.pk, status=call.status).update(
                status=outcome, error=error
            )
            if not changed:  # it landed since we looked
                call.refresh_from_db()
            else:
                call.status, call.error = outcome, error
                if call.kind == ToolCall.Kind.ACTION:
                    audit.record(run_id, "settled", content={"callId": call.call_id, "status": outcome})
        if ToolCall.objects.filter(pk=call.pk, told=False).update(told=True):
            yield FrameData(*result_frame(call))
