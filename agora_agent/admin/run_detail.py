"""What the detail page of a run shows, gathered in a constant number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Sum
from django.http import HttpRequest

from agora_agent.admin import words
from agora_agent.admin.arguments import shown_arguments
from agora_agent.admin.journal import journal_page
from agora_agent.db import database_now
from agora_agent.governance.shown import Reader, shown
from agora_agent.models import AgentRun, Message, ToolCall, Usage, write_alias

#: Rows of one kind on one page; a run of the default limits stays below.
SHOWN_ROWS = 200


@dataclass(frozen=True)
class CallRow:
    """A tool call as the table shows it."""

    call: ToolCall
    tone: str
    decided_by: str
    door: str
    arguments: dict[str, Any]
    redacted: bool
    has_card: bool


@dataclass(frozen=True)
class ChildRow:
    """A delegated run as the table shows it."""

    run: AgentRun
    tone: str
    wait: words.Wait


def run_context(run: AgentRun, request: HttpRequest) -> dict[str, Any]:
    """Facts, wait, calls, messages, children, usage and journal of one run."""
    from agora_agent.admin.runs import open_calls

    reader = Reader(request.user)
    payload = reader.sees_payloads
    calls = list(run.tool_calls.select_related("decided_by").order_by("step", "index")[: SHOWN_ROWS + 1])
    for call in calls:
        call.run = run
    messages = list(
        Message.objects.filter(thread_id=run.thread_id, run_id=run.pk).order_by("seq")[: SHOWN_ROWS + 1]
    )
    children = (
        run.children.select_related("actor").defer("input", "requesters", "error_detail", "answer")
    ).prefetch_related(open_calls())
    usage = Usage.objects.filter(run=run).order_by("step", "attempt")
    pending = [call for call in calls if call.status in ToolCall.PENDING]
    return {
        "tone": words.run_tone(run, run.open_calls),  # type: ignore[attr-defined]
        "wait": words.waits_for(run, run.open_calls),  # type: ignore[attr-defined]
        "waiting_since": min((call.created_at for call in pending), default=None),
        "waiting_calls": pending,
        "requester": words.person(run.actor, run.actor_ref),
        "cancelled_by": words.person_of_ref(run.cancelled_by),
        "elapsed_until": run.finished_at or database_now(write_alias()),
        "calls": [_row(call, reader) for call in calls[:SHOWN_ROWS]],
        "calls_cut": len(calls) > SHOWN_ROWS,
        "transcript": messages[:SHOWN_ROWS],
        "transcript_cut": len(messages) > SHOWN_ROWS,
        "children": [
            ChildRow(child, words.run_tone(child, child.open_calls), words.waits_for(child, child.open_calls))  # type: ignore[attr-defined]
            for child in children.order_by("created_at", "pk")[:SHOWN_ROWS]
        ],
        "usage": list(usage[:SHOWN_ROWS]),
        "usage_total": usage.aggregate(
            input=Sum("input_tokens"), output=Sum("output_tokens"), cost=Sum("cost_usd")
        ),
        "may_see_payload": payload,
        "journal": journal_page(run, request.GET.get("journal", "")) if payload else None,
    }


def _row(call: ToolCall, reader: Reader) -> CallRow:
    decided = bool(call.decided_by_id or call.decided_ref)
    return CallRow(
        call=call,
        tone=words.call_tone(call),
        decided_by=words.person(call.decided_by, call.decided_ref) if decided else "",
        door=words.door(call.via),
        arguments=shown_arguments(call, reader),
        redacted=shown(call, reader).hidden,
        has_card=bool(call.tier),
    )
