"""May this person use this tool, and must somebody be asked? Whatever goes wrong on the way means no."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import get_agent
from agora_agent.agents.tool import Tool
from agora_agent.conf import instance
from agora_agent.governance.ownership import requesters
from agora_agent.governance.primary import primary
from agora_agent.governance.principal import acting
from agora_agent.governance.rights import approver_exists, fresh_user, has_perm, somebody_holds
from agora_agent.models import AgentRun, ToolCall

__all__ = [
    "ApprovalPolicy",
    "DeclaredApprovalPolicy",
    "DeclaredToolPolicy",
    "Requirement",
    "ToolPolicy",
    "agreed",
    "declared",
    "fresh_user",
    "permitted",
    "required",
]

logger = logging.getLogger("agora_agent.governance")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a call needs before it may run. ``ask``: ``approver`` decides, or with tier *confirm* the requester."""

    decision: Literal["allow", "ask", "deny"]
    tier: str = ""
    approver: str = ""
    expires_after: timedelta | None = None
    #: For the model and the operator, where the answer is no.
    reason: str = ""


class ToolPolicy(Protocol):
    """A project's own word about who may use a tool. It narrows what the tool declares and never widens it."""

    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool: ...


class ApprovalPolicy(Protocol):
    """Whether a call runs, waits for a person, or is denied. Asked once, when the call is claimed."""

    def require(self, tool: Tool, arguments: dict[str, Any], user: Any, run: AgentRun) -> Requirement: ...


class DeclaredToolPolicy:
    """What is declared: the agent's own gate, then the tool's permission.

    A tool without one is allowed to whoever may start the agent; an action asks all the same.
    """

    @primary()
    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool:
        """The answer for the user as the database has it now."""
        person = fresh_user(user.pk)
        if person is None or person.is_active is not True or agent.may_start(person) is not True:
            return False
        if tool.kind == "agent":
            target = get_agent(tool.name)
            return target is not None and target.may_start(person) is True
        return tool.permission is None or has_perm(person, tool.permission)


class DeclaredApprovalPolicy:
    """What is declared: reads run, actions ask whom the tool names, or are denied if there is no such person."""

    def require(self, tool: Tool, arguments: dict[str, Any], user: Any, run: AgentRun) -> Requirement:
        """The same answer for every call of a tool."""
        if tool.kind != "action":
            return Requirement("allow")
        return _askable(Requirement("ask", tool.tier, tool.approver or "", tool.expires_after), run)


def permitted(tool: Tool | None, user: Any, agent: Agent | None) -> bool:
    """True if ``user`` may use ``tool`` in ``agent`` now: what is declared, then the project's policy."""
    return declared(tool, user, agent) and agreed(tool, user, agent)


def declared(tool: Tool | None, user: Any, agent: Agent | None) -> bool:
    """True if what is declared lets ``user`` use ``tool`` in ``agent`` now. Asks no policy of the project."""
    return _allows(DeclaredToolPolicy, tool, user, agent)


def agreed(tool: Tool | None, user: Any, agent: Agent | None) -> bool:
    """True if the project's own policy, where there is one, lets ``user`` use ``tool`` in ``agent`` now.

    Its code may take its time: never inside a transaction.
    """
    return _allows(_projects_policy, tool, user, agent)


class _NoObjection:
    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool:
        return True


def _projects_policy() -> ToolPolicy:
    configured: ToolPolicy = instance("TOOL_POLICY")
    # A project without one of its own has nothing to add to what is declared.
    return _NoObjection() if type(configured) is DeclaredToolPolicy else configured


def _allows(policy: Callable[[], ToolPolicy], tool: Tool | None, user: Any, agent: Agent | None) -> bool:
    if tool is None or agent is None or user is None:
        return False
    try:
        with acting():
            return policy().allows(tool, user, agent) is True
    except Exception:
        logger.exception("The tool policy failed: %s is denied.", tool.name)
        return False


def required(tool: Tool, arguments: dict[str, Any], user: Any, run: AgentRun) -> Requirement:
    """What this call needs, by the project's policy; denied where the one who must be asked does not exist."""
    try:
        policy = instance("APPROVAL_POLICY")
        with acting():
            answer = policy.require(tool, arguments, user, run)
        return answer if type(policy) is DeclaredApprovalPolicy else _askable(answer, run)
    except Exception:
        logger.exception("The approval policy failed: the call of %s is denied.", tool.name)
        return Requirement("deny", reason="Whether this may run could not be found out, so it may not.")


def _askable(answer: object, run: AgentRun) -> Requirement:
    if not isinstance(answer, Requirement) or not _is_well_formed(answer):
        raise TypeError(f"a policy answered {answer!r}")
    if answer.decision != "ask" or answer.tier == ToolCall.Tier.CONFIRM:
        return answer
    whom = answer.approver.replace(":", " ", 1)
    if not approver_exists(answer.approver):
        return Requirement("deny", reason=f"Nobody can authorise this: there is no {whom}.")
    if not somebody_holds(answer.approver, besides=requesters(run)):
        why = f"Nobody can authorise this: nobody but the requester has {whom}."
        return Requirement("deny", reason=why)
    return answer


def _is_well_formed(answer: Requirement) -> bool:
    if not isinstance(answer.approver, str) or not isinstance(answer.reason, str):
        return False
    limit = answer.expires_after
    if limit is not None and not (isinstance(limit, timedelta) and limit > timedelta(0)):
        return False
    if answer.decision == "ask":
        confirm, authorise = ToolCall.Tier.CONFIRM, ToolCall.Tier.AUTHORISE
        return answer.tier == (authorise if answer.approver else confirm)
    return answer.decision in ("allow", "deny")
