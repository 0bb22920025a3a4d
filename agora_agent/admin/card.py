"""The card of one call: server facts, arguments, the tool's preview, then the words of model and requester."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils.translation import gettext as _

from agora_agent.admin import words
from agora_agent.admin.arguments import shown_arguments
from agora_agent.governance import ownership
from agora_agent.governance.shown import Reader, shown
from agora_agent.models import Message, ToolCall
from agora_agent.templatetags.agora_admin import aware

_LOOKED_AT = 50


def card_context(call: Any, user: Any) -> dict[str, Any]:
    """Everything that the page about ``call`` shows to ``user``."""
    pending = call.status == ToolCall.Status.PENDING_APPROVAL and not call.run.is_terminal
    over = pending and call.expires_at is not None and aware(call.expires_at) <= dt.datetime.now(dt.UTC)
    may = ownership.may_decide(user, call)
    may_reject = may or ownership.may_decide(user, call, "reject")
    decided = bool(call.decided_by_id or call.decided_ref)
    said, asked = _words_of(call)
    reader = Reader(user)
    seen = shown(call, reader)
    return {
        "title": _title(call, pending and not over and may),
        "call": call,
        "tone": words.call_tone(call),
        "pending": pending,
        "over": over,
        "may_approve": pending and not over and may,
        "may_reject": pending and not over and may_reject,
        "why_not": "" if may or not pending else _why_not(call, user),
        "standing": None if pending else words.standing(call),
        "decided_by": words.person(call.decided_by, call.decided_ref) if decided else "",
        "door": words.door(call.via),
        "requester": words.person(call.run.actor, call.run.actor_ref),
        "tier": words.tier(call),
        "who_decides": words.who_decides(call),
        "arguments": shown_arguments(call, reader),
        "preview": seen.preview,
        "redacted": seen.hidden,
        "model_said": said,
        "requester_said": asked,
    }


def _title(call: ToolCall, asks: bool) -> str:
    values = {"tool": call.tool_name, "who": words.person(call.run.actor, call.run.actor_ref)}
    return (_("Approve %(tool)s for %(who)s?") if asks else _("%(tool)s for %(who)s")) % values


def _why_not(call: ToolCall, user: Any) -> str:
    if f"user:{user.pk}" in ownership.requesters(call.run) and call.tier == ToolCall.Tier.AUTHORISE:
        return _("You asked for this yourself, so somebody else must decide: %(who)s.") % {
            "who": words.who_decides(call)
        }
    return _("This is not yours to approve. Who may: %(who)s.") % {"who": words.who_decides(call)}


def _words_of(call: ToolCall) -> tuple[str, str]:
    """What the model said in the step that asked for the call, and what the requester had said before."""
    messages = Message.objects.filter(thread_id=call.run.thread_id, run_id=call.run_id).order_by("-seq")
    said, asked = "", ""
    for message in messages[:_LOOKED_AT]:
        if message.role == Message.Role.USER:
            asked = message.content
            break
        if not said and any(item.get("id") == call.call_id for item in message.tool_calls or ()):
            said = message.content
    started_with = call.run.input if isinstance(call.run.input, dict) else {}
    return said, asked or str(started_with.get("message") or "")
