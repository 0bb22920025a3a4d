"""The gates that a tool call goes through before it becomes a row: offered, allowed, valid, and whom to ask.

Runs host code (policies, previews), so it runs outside any transaction. Whatever raises or answers outside its type
denies: nothing here lets an error through to the turn.
"""

from __future__ import annotations

import logging
from typing import Any

from agora_agent import codec
from agora_agent.abort import AbortSignal
from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import find_tool, get_agent, offered_tools
from agora_agent.agents.tool import InvalidToolInput, Tool, ToolContext
from agora_agent.conf import agora_settings
from agora_agent.governance.holders import holder_names
from agora_agent.governance.policy import Requirement, permitted, required
from agora_agent.governance.principal import acting
from agora_agent.governance.rights import fresh_user
from agora_agent.models import AgentRun
from agora_agent.turn.hooks import Assessment, TurnInput

logger = logging.getLogger("agora_agent.runners")


def assess(turn: TurnInput, call: dict[str, Any]) -> Assessment:
    """The verdict on one call as the model step offered it. Never raises."""
    try:
        with acting():
            return _assess(turn, call)
    except Exception:
        logger.exception("a gate failed", extra={"run_id": str(turn.run_id), "tool": call["name"]})
        return Assessment("refuse", error="The call could not be checked, so it was refused.")


def _assess(turn: TurnInput, call: dict[str, Any]) -> Assessment:
    if call.get("error"):
        return Assessment("refuse", error=f"{call['error']} Nothing was executed.")
    run = AgentRun.objects.get(pk=turn.run_id)
    user = fresh_user(run.actor_id)
    agent = get_agent(turn.agent)
    tool = find_tool(agent, call["name"], turn.persona or None) if agent else None
    if user is None:
        return Assessment("refuse", error="The person this run works for may not use tools any more.")
    if tool is None or tool.kind == "ask":
        return _without_tool(turn, call, agent)
    if not permitted(tool, user, agent):
        return Assessment("refuse", error=f"The tool {tool.name!r} is not permitted here.")
    try:
        arguments = tool.validate(call["input"])
    except InvalidToolInput as error:
        return Assessment("refuse", error=error.message)
    if call["kind"] == "agent":
        return _delegation(turn, tool, arguments, user)
    requirement = required(tool, arguments, user, run)
    if requirement.decision == "deny":
        return Assessment(
            "refuse", error=requirement.reason or f"The tool {tool.name!r} is not permitted here."
        )
    return _verdict(turn, call, tool, arguments, requirement, user, run)


def _verdict(
    turn: TurnInput,
    call: dict[str, Any],
    tool: Tool,
    arguments: dict[str, Any],
    requirement: Requirement,
    user: Any,
    run: AgentRun,
) -> Assessment:
    # A tool that was an action where it was offered never becomes a read on the way.
    ask = requirement.decision == "ask" or (call["kind"] == "action" and tool.kind != "action")
    if requirement.decision == "ask":
        tier, approver = requirement.tier, requirement.approver
    else:
        tier, approver = call.get("tier") or "confirm", call.get("approver") or ""
    expires = requirement.expires_after
    return Assessment(
        "ask" if ask else "run",
        arguments=arguments,
        identity=tool.identity,
        digest=codec.digest(arguments, identity=tool.identity),
        module=tool.module,
        tier=tier if ask else "",
        approver=approver if ask else "",
        expires_seconds=expires.total_seconds() if expires and ask else None,
        preview=_preview(turn, call, tool, arguments, user) if ask else "",
        waiting_for=tuple(holder_names(approver, besides=run.requesters)) if ask and approver else (),
        at_most_once=tool.kind == "action" and not tool.idempotent,
        queue=tool.queue,
    )


def _without_tool(turn: TurnInput, call: dict[str, Any], agent: Agent | None) -> Assessment:
    """This process does not have the tool. An action that was really offered parks all the same."""
    if call["kind"] == "action" and call.get("identity"):
        arguments = call["input"] if isinstance(call["input"], dict) else {}
        return Assessment(
            "ask",
            arguments=arguments,
            identity=call["identity"],
            digest=codec.digest(arguments, identity=call["identity"]),
            tier=call.get("tier") or "confirm",
            approver=call.get("approver") or "",
            at_most_once=True,
            queue=call.get("queue") or "default",
        )
    offered = offered_tools(agent, turn.persona or None) if agent else []
    names = [tool.name for tool in offered if tool.kind != "ask"]
    available = f" Available tools: {', '.join(names)}." if names else ""
    return Assessment("refuse", error=f"There is no tool named {call['name']!r}.{available}")


def _delegation(turn: TurnInput, tool: Tool, arguments: dict[str, Any], user: Any) -> Assessment:
    chain = " → ".join([*turn.path, tool.name])
    target = get_agent(tool.name)
    if target is None or not target.may_start(user):
        return Assessment("refuse", error=f"There is no agent {tool.name!r} that may be asked here.")
    if tool.name in turn.path:
        return Assessment("refuse", error=f"Agents may not delegate in a circle: {chain}.")
    if turn.depth + 1 > agora_settings.MAX_DELEGATION_DEPTH:
        return Assessment("refuse", error=f"Delegated too deep: {chain}.")
    digest = codec.digest(arguments, identity=tool.identity)
    return Assessment(
        "run",
        arguments=arguments,
        identity=tool.identity,
        digest=digest,
        module=tool.module,
        max_steps=min(target.max_steps or agora_settings.MAX_STEPS, turn.max_steps),
    )


def _preview(turn: TurnInput, call: dict[str, Any], tool: Tool, arguments: dict[str, Any], user: Any) -> str:
    if tool.preview is None:
        return ""
    context = ToolContext(
        user=user,
        run_id=turn.run_id,
        thread_id=turn.thread_id,
        tool_call_id=call["id"],
        idempotency_key=f"{turn.run_id}:{call['id']}",
        abort_signal=AbortSignal(),
        page_context=turn.page_context,
        agent=turn.agent,
        tenant=turn.tenant,
    )
    try:
        return codec.clean_text(tool.render_preview(context, arguments))[:2000]
    except Exception:
        logger.exception("a preview failed", extra={"run_id": str(turn.run_id), "tool": tool.name})
        return ""
