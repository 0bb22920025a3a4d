"""The sentences of the admin: what a run waits for, who may decide, what happened to a call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from agora_agent.governance.shown import Reader, shown
from agora_agent.models import AgentRun, ToolCall

#: The tone of a status: one of the classes ``agora-<tone>`` of the style sheet.
RUN_TONES = {
    AgentRun.Status.RUNNING: "info",
    AgentRun.Status.COMPLETED: "good",
    AgentRun.Status.FAILED: "bad",
    AgentRun.Status.CANCELLED: "quiet",
}
CALL_TONES = {
    ToolCall.Status.PENDING_APPROVAL: "wait",
    ToolCall.Status.PENDING_ANSWERS: "wait",
    ToolCall.Status.AUTO_EXECUTED: "info",
    ToolCall.Status.APPROVED: "info",
    ToolCall.Status.EXECUTING: "info",
    ToolCall.Status.EXECUTED: "good",
    ToolCall.Status.FAILED: "bad",
    ToolCall.Status.REJECTED: "bad",
    ToolCall.Status.EXPIRED: "quiet",
    ToolCall.Status.CANCELLED: "quiet",
    ToolCall.Status.INTERRUPTED: "bad",
}
_DOORS = {
    "rest": gettext_lazy("REST API"),
    "admin": gettext_lazy("admin"),
    "ws": gettext_lazy("WebSocket"),
    "command": gettext_lazy("management command"),
    "python": gettext_lazy("Python"),
    "expiry": gettext_lazy("deadline"),
    "policy": gettext_lazy("policy"),
}
_FAILURES = {
    "model_failed": gettext_lazy("the model could not be asked, or its answer could not be used"),
    "model_no_output": gettext_lazy("the model answered with nothing"),
    "limit_exceeded": gettext_lazy("a limit was reached"),
    "replay_diverged": gettext_lazy("the code no longer matches the run's journal"),
    "interrupted": gettext_lazy("the process that executed it ended"),
    "dead": gettext_lazy("it crashed its worker too often"),
    "run_failed": gettext_lazy("something went wrong that the server's log tells about"),
}


class Wait(NamedTuple):
    """What a run waits for, and what a person can do about it."""

    headline: str
    advice: str = ""


def run_tone(run: AgentRun, calls: Iterable[ToolCall]) -> str:
    """The colour class of a run. One that waits for a person stands out; ``calls``: those without an outcome."""
    if not run.is_terminal and any(ToolCall.Status(call.status) in _URGENCY for call in calls):
        return "wait"
    return RUN_TONES.get(AgentRun.Status(run.status), "quiet")


def call_tone(call: ToolCall) -> str:
    """The colour class of a tool call."""
    return CALL_TONES.get(ToolCall.Status(call.status), "quiet")


def doors() -> list[tuple[str, str]]:
    """All doors, as a filter lists them."""
    return [(via, str(name)) for via, name in _DOORS.items()]


def door(via: str) -> str:
    """The door through which a decision came."""
    return str(_DOORS.get(via, via))


def person(user: Any, ref: str = "") -> str:
    """Somebody by name; by reference when the account is gone."""
    if user is not None:
        return str(user)
    return _("%(ref)s (deleted account)") % {"ref": ref} if ref else _("nobody")


def person_of_ref(ref: str) -> str:
    """Somebody whom only a stored reference names."""
    if not ref:
        return ""
    model = get_user_model()
    try:
        user = model._default_manager.filter(pk=ref.rpartition(":")[2]).first()
    except (ValueError, ValidationError):
        user = None
    return str(user) if user is not None else ref


@lru_cache(maxsize=1)
def _permission_names() -> dict[str, str]:
    return {
        f"{model._meta.app_label}.{codename}": str(name)
        for model in apps.get_models()
        for codename, name in model._meta.permissions
    }


def who_decides(call: ToolCall, *, brief: bool = False) -> str:
    """Who may decide, in words; without the permission's code name if ``brief``."""
    kind, _colon, name = call.approver.partition(":")
    if not call.approver:
        return _("the requester, %(who)s") % {"who": person(call.run.actor, call.run.actor_ref)}
    if kind == "group":
        return _("a member of the group “%(group)s”") % {"group": name}
    label = _permission_names().get(name)
    if label and brief:
        return _("somebody who “%(label)s”") % {"label": label}
    if label:
        return _("somebody with the permission “%(label)s” (%(name)s)") % {"label": label, "name": name}
    return _("somebody with the permission %(name)s") % {"name": name or call.approver}


def tier(call: ToolCall) -> str:
    """What kind of yes the call needs."""
    if call.tier == ToolCall.Tier.AUTHORISE:
        return _("Authorise: somebody other than the requester must agree")
    if call.tier == ToolCall.Tier.CONFIRM:
        return _("Confirm: the requester says yes")
    return _("Nobody is asked")


def sentence(call: ToolCall, reader: Reader, limit: int = 160) -> str:
    """What will happen, in one line, as ``reader`` sees it: the tool's own preview, else the tool and its arguments."""
    seen = shown(call, reader)
    if seen.preview:
        text = seen.preview.strip().splitlines()[0] if seen.preview.strip() else call.tool_name
    else:
        arguments = seen.input if isinstance(seen.input, dict) else {}
        pairs = ", ".join(f"{name} = {value}" for name, value in arguments.items())
        text = f"{call.tool_name}: {pairs}" if pairs else call.tool_name
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _waiting_call(call: ToolCall) -> Wait:
    tool = call.tool_name
    match call.status:
        case ToolCall.Status.INTERRUPTED:
            return Wait(
                _("Waiting for a person: the outcome of %(tool)s is unknown") % {"tool": tool},
                _(
                    "The process ended while the tool was running, so nobody knows whether it took effect. Look "
                    "at the target system, then settle the call (tool-call/settle): run it "
                    "again, record it as done, or fail it."
                ),
            )
        case ToolCall.Status.PENDING_APPROVAL:
            return Wait(
                _("Waiting for approval of %(tool)s by %(who)s")
                % {"tool": tool, "who": who_decides(call, brief=True)},
                _("Open the call to approve or reject it. Nothing runs until somebody does."),
            )
        case ToolCall.Status.PENDING_ANSWERS:
            who = person(call.run.actor, call.run.actor_ref)
            return Wait(
                _("Waiting for answers from %(who)s") % {"who": who},
                _("The requester answers the questions, or skips them, where the conversation takes place."),
            )
    if call.kind == ToolCall.Kind.AGENT:
        return Wait(
            _("Waiting for the delegated agent %(agent)s") % {"agent": tool},
            _("See the delegated run below: what it waits for, this run waits for too."),
        )
    return Wait(_("Running %(tool)s") % {"tool": tool})


_URGENCY = {
    ToolCall.Status.INTERRUPTED: 0,
    ToolCall.Status.PENDING_APPROVAL: 1,
    ToolCall.Status.PENDING_ANSWERS: 2,
}


def waits_for(run: AgentRun, calls: Iterable[ToolCall]) -> Wait:
    """What ``run`` waits for. ``calls`` are its calls without an outcome."""
    if run.is_terminal:
        return _ended(run)
    if run.cancel_requested_at is not None:
        return Wait(
            _("Stopping: a cancel was asked for"),
            _("The run ends at its next boundary, at the latest when the step that is running returns."),
        )
    pending = sorted(calls, key=lambda call: (_URGENCY.get(ToolCall.Status(call.status), 9), call.created_at))
    if pending and _URGENCY.get(ToolCall.Status(pending[0].status), 9) < 9:
        wait = _waiting_call(pending[0])
        more = sum(1 for call in pending[1:] if ToolCall.Status(call.status) in _URGENCY)
        if more:
            others = ngettext("and %(n)s other call", "and %(n)s other calls", more) % {"n": more}
            wait = wait._replace(headline=f"{wait.headline} {others}")
        return wait
    if pending:
        return _waiting_call(pending[0])
    if run.phase == AgentRun.Phase.QUEUED:
        return Wait(
            _("Waiting for a free worker"),
            _(
                "If this lasts, see that a process that drives runs is up: the web server, or "
                "manage.py agora_worker."
            ),
        )
    if run.phase == AgentRun.Phase.WAITING:
        return Wait(
            _("Waiting to be driven on"), _("Nothing is missing; a worker takes it up within seconds.")
        )
    return Wait(_("Working on step %(n)s") % {"n": run.steps + 1})


def _ended(run: AgentRun) -> Wait:
    match run.status:
        case AgentRun.Status.COMPLETED:
            if run.finish_reason == "max_steps":
                return Wait(
                    _("Ended at its limit of steps"),
                    _("The last text is the answer. Raise max_steps of the agent if that is too few."),
                )
            return Wait(_("Done"))
        case AgentRun.Status.CANCELLED:
            return Wait(_("Cancelled"))
    code = run.error_code
    if code in _FAILURES:
        return Wait(
            _("Failed: %(why)s") % {"why": _FAILURES[code]}, _("The requester can send the message again.")
        )
    return Wait(_("Failed (%(code)s)") % {"code": code or "error"})


def standing(call: ToolCall) -> Wait:
    """The outcome of a call that is no longer open, and what it means."""
    who = person(call.decided_by, call.decided_ref) if (call.decided_by_id or call.decided_ref) else ""
    values = {"who": who}
    match call.status:
        case ToolCall.Status.REJECTED:
            return Wait(_("Rejected by %(who)s") % values, _("Nothing ran. The model was told why."))
        case ToolCall.Status.EXPIRED:
            return Wait(_("Expired: nobody decided in time"), _("Nothing ran. The model was told."))
        case ToolCall.Status.CANCELLED:
            return Wait(_("Cancelled with its run"), _("Nothing ran."))
        case ToolCall.Status.APPROVED:
            return Wait(_("Approved by %(who)s") % values, _("It runs as soon as a worker takes the run up."))
        case ToolCall.Status.EXECUTING:
            return Wait(_("Approved by %(who)s") % values if who else _("Allowed"), _("It is running now."))
        case ToolCall.Status.EXECUTED:
            return Wait(
                _("Approved by %(who)s") % values if who else _("Allowed"), _("It ran; see the result.")
            )
        case ToolCall.Status.FAILED:
            return Wait(
                _("Approved by %(who)s, but the tool failed") % values if who else _("The tool failed"),
                _("The model was told."),
            )
        case ToolCall.Status.INTERRUPTED:
            return Wait(
                _("Outcome unknown"),
                _(
                    "The process ended while the tool was running. It is not repeated until a person "
                    "settles it."
                ),
            )
    return Wait(call.get_status_display())
