"""The last look before an effect: may exactly this still run, now, in this process?"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Literal

from agora_agent import codec
from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import find_tool, get_agent
from agora_agent.agents.tool import Tool
from agora_agent.conf import agora_settings
from agora_agent.db import database_now
from agora_agent.exceptions import AgoraError
from agora_agent.governance import audit
from agora_agent.governance.locking import lock_call
from agora_agent.governance.ownership import may_decide, may_settle
from agora_agent.governance.policy import agreed, declared
from agora_agent.governance.rights import fresh_user
from agora_agent.governance.standing import outcome_of, settlement_of
from agora_agent.models import Decision, ToolCall, write_alias

RefusalCode = Literal["changed", "missing", "not_permitted", "not_active", "expired", "withdrawn"]


_MAY_RUN = (
    ToolCall.Status.APPROVED,
    ToolCall.Status.AUTO_EXECUTED,
    ToolCall.Status.EXECUTING,
    ToolCall.Status.INTERRUPTED,
)
_NOT_PERMITTED = "The requester may not use this tool any more."


class LaunchRefused(AgoraError):
    """The call may not run: nothing was executed."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def precheck(call_pk: uuid.UUID) -> None:
    """Ask the project's policy about a launch, before the transaction in which :func:`gate` says the rest.

    Raises:
        LaunchRefused: ``not_permitted``: the project's policy does not let the run's user use the tool now.
    """
    call = ToolCall.objects.select_related("run").filter(pk=call_pk).first()
    agent = None if call is None else get_agent(call.run.agent)
    tool = None if call is None or agent is None else _tool(agent, call)
    if call is None or call.status not in _MAY_RUN or tool is None or tool.identity != call.identity:
        return  # the gate has more to say about that
    if not agreed(tool, fresh_user(call.run.actor_id), agent):
        raise LaunchRefused("not_permitted", _NOT_PERMITTED)


def gate(call_pk: uuid.UUID, *, identity: str) -> ToolCall:
    """Let a call through, in the open transaction that claims its execution, and take note of the launch.

    Looks at rows and at rights as they are now, and runs no policy of the project: that is :func:`precheck`.

    Args:
        call_pk: the call.
        identity: of the tool that is about to run here.

    Returns:
        The call with the arguments that may run.

    Raises:
        LaunchRefused: nothing may run. ``changed``: tool or arguments are not what was decided about;
            ``missing``: the agent has no such tool here; ``not_permitted``: the run's user may not use the tool
            any more; ``not_active``: the run has ended or is being stopped; ``expired``: the approval is too
            old; ``withdrawn``: no approval stands.
    """
    using = write_alias()
    call = lock_call(call_pk, using)
    if call is None or call.run.is_terminal or call.run.cancel_requested_at is not None:
        raise LaunchRefused("not_active", "The run has ended or is being stopped.")
    if identity != call.identity or codec.digest(call.input, identity=identity) != call.digest:
        raise LaunchRefused("changed", "The tool or its arguments are not what was asked about.")
    _check_actor(call)
    now = database_now(using)
    authority, since = _authority(call, now)
    # Later than what it rests on, however coarse the clock: a settlement counts for one launch.
    _launch(call, max(now, since + dt.timedelta(microseconds=1)), using)
    if call.kind == ToolCall.Kind.ACTION:
        content = {"digest": call.digest, **authority}
        audit.record(call.run_id, "launched", subject_ref=f"call:{call.pk}", content=content)
    return call


def _check_actor(call: ToolCall) -> None:
    agent = get_agent(call.run.agent)
    tool = None if agent is None else _tool(agent, call)
    if tool is None:
        raise LaunchRefused("missing", f"There is no tool {call.tool_name!r} here.")
    if tool.kind == "action" and call.kind != ToolCall.Kind.ACTION:
        raise LaunchRefused("changed", "What was called unasked has an effect now.")
    if not declared(tool, fresh_user(call.run.actor_id), agent):
        raise LaunchRefused("not_permitted", _NOT_PERMITTED)


def _tool(agent: Agent, call: ToolCall) -> Tool | None:
    return find_tool(agent, call.tool_name, call.run.persona or None)


def _authority(call: ToolCall, now: dt.datetime) -> tuple[dict[str, Any], dt.datetime]:
    """What lets the call run, as its audit entry names it, and since when."""
    if call.status == ToolCall.Status.INTERRUPTED:
        settlement = settlement_of(call)
        if settlement is None or settlement.reply["outcome"] != "again":
            raise LaunchRefused("withdrawn", "Nobody has said that this call is to run again.")
        _check_person(may_settle(fresh_user(settlement.principal_id) or _NOBODY, call))
        _check_age(settlement, now)
        return {"settlement": str(settlement.pk)}, settlement.created_at
    launchable = [ToolCall.Status.APPROVED if call.tier else ToolCall.Status.AUTO_EXECUTED]
    if not call.at_most_once:
        launchable.append(ToolCall.Status.EXECUTING)
    if call.status not in launchable:
        raise LaunchRefused("withdrawn", f"The call is {call.get_status_display()}.")
    if not call.tier:
        return {"policy": True}, call.created_at
    approval = outcome_of(call)
    if approval is None or approval.verdict != Decision.Verdict.APPROVE:
        raise LaunchRefused("withdrawn", "No approval stands.")
    if approval.digest != call.digest:
        raise LaunchRefused("changed", "Other arguments were approved.")
    _check_person(may_decide(fresh_user(approval.principal_id) or _NOBODY, call))
    _check_age(approval, now)
    return {"decision": str(approval.pk)}, approval.created_at


class _Nobody:
    pk = None
    is_active = False


_NOBODY = _Nobody()


def _check_person(is_entitled: bool) -> None:
    if not is_entitled:
        raise LaunchRefused("withdrawn", "Whoever approved this may not approve it any more.")


def _check_age(decision: Decision, now: dt.datetime) -> None:
    if decision.created_at + dt.timedelta(seconds=agora_settings.APPROVAL_VALID_SECONDS) <= now:
        raise LaunchRefused("expired", "The approval was given too long ago.")


def _launch(call: ToolCall, at: dt.datetime, using: str) -> None:
    status = ToolCall.Status.EXECUTING if call.kind == ToolCall.Kind.ACTION else call.status
    launched = (
        ToolCall.objects.using(using)
        .filter(pk=call.pk, status=call.status)
        .update(status=status, launched_at=at)
    )
    if launched != 1:
        raise LaunchRefused("withdrawn", "The call was settled meanwhile.")
    call.status, call.launched_at = status, at
