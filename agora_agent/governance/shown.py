"""What one reader sees of a call: arguments that its tool marks with ``redact`` are hidden from most.

Whose run it is and who may decide about the call see everything, and so do holders of ``view_run_payload``. For
anybody else each of those values is :data:`MARK`, and what was made of the arguments (the preview, the digest) is left
out. Where nobody can say what is to be hidden, everything is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from agora_agent.agents.registry import agents, find_tool, get_agent
from agora_agent.agents.tool import Tool
from agora_agent.governance.ownership import may_decide, may_settle, owns, requesters
from agora_agent.governance.principal import user_ref
from agora_agent.governance.rights import has_perm
from agora_agent.models import AgentRun, Message, Thread, ToolCall

logger = logging.getLogger("agora_agent.governance")

VIEW_PAYLOAD = "agora_agent.view_run_payload"

#: Stands for a hidden value. No word: it is the same in every language.
MARK = "•••"


class Reader:
    """Somebody who is shown something. Made for one answer: what they may see is asked once."""

    def __init__(self, user: Any) -> None:
        self.user = user
        self._decides: dict[Any, bool] = {}

    @cached_property
    def sees_payloads(self) -> bool:
        """True if nothing of any run that they read is hidden from them."""
        return has_perm(self.user, VIEW_PAYLOAD)

    def sees_all_of(self, row: AgentRun | Thread | ToolCall) -> bool:
        """True if nothing of this row is hidden from them. A call needs its run loaded."""
        if owns(self.user, row) or self.sees_payloads:
            return True
        return isinstance(row, ToolCall) and self._decides_about(row)

    def _decides_about(self, call: ToolCall) -> bool:
        unknown = call.status == ToolCall.Status.INTERRUPTED
        asked = user_ref(self.user) in requesters(call.run)
        key = (call.tier, call.approver, unknown, asked)
        if key not in self._decides:
            verdicts = ("approve", "reject") if call.tier else ()
            self._decides[key] = any(may_decide(self.user, call, verdict) for verdict in verdicts) or (
                unknown and may_settle(self.user, call)
            )
        return self._decides[key]


class Shown(NamedTuple):
    """A call as one reader sees it. ``hidden``: some of it was left out."""

    input: Any
    preview: str
    digest: str
    hidden: bool


def shown(call: ToolCall, reader: Reader) -> Shown:
    """The call as ``reader`` sees it. Needs its run loaded."""
    hidden = _hidden(call.tool_name, call.input, call.run.agent)
    if not hidden or reader.sees_all_of(call):
        return Shown(call.input, call.preview, call.digest, hidden=False)
    return Shown(_masked(call.input, hidden), "", "", hidden=True)


def shown_requests(messages: Sequence[Message], thread: Thread, reader: Reader) -> dict[Any, list[Any]]:
    """What each of these messages of a thread asked for, as ``reader`` sees it, by the message's key."""
    asked = {message.pk: list(message.tool_calls or ()) for message in messages}
    if reader.sees_all_of(thread):
        return asked
    hiding = {
        message.run_id
        for message in messages
        if any(_hidden(item.get("name"), item.get("input")) for item in asked[message.pk])
    }
    calls = ToolCall.objects.filter(run_id__in=hiding).select_related("run") if hiding else ()
    clear = {(call.run_id, call.call_id) for call in calls if reader.sees_all_of(call)}
    for message in messages:
        asked[message.pk] = [
            item if (message.run_id, item.get("id")) in clear else _masked_request(item)
            for item in asked[message.pk]
        ]
    return asked


def shown_frame(event: str, data: dict[str, Any]) -> dict[str, Any]:
    """A frame's data for a reader of somebody else's stream who may not see payloads."""
    if event not in ("tool-call", "approval"):
        return data
    hidden = _hidden(data.get("toolName"), data.get("input"))
    if not hidden:
        return data
    left = {key: value for key, value in data.items() if key not in ("preview", "digest")}
    return left | {"input": _masked(data["input"], hidden)}


def _masked_request(item: dict[str, Any]) -> dict[str, Any]:
    hidden = _hidden(item.get("name"), item.get("input"))
    return {**item, "input": _masked(item["input"], hidden)} if hidden else item


_ALL = "*"


def _hidden(tool_name: Any, arguments: Any, agent: str = "") -> frozenset[str]:
    """Names of the arguments that are hidden; :data:`_ALL` where they are no names and values."""
    if not arguments:
        return frozenset()
    names = frozenset(arguments) if isinstance(arguments, dict) else frozenset((_ALL,))
    try:
        tools = list(_tools(tool_name, agent))
        if tools and not any(tool.redact for tool in tools):
            return frozenset()
        # A name that the tool does not have is the model's mistake, and its value may be anything.
        told = [frozenset(tool.schema["properties"]) - frozenset(tool.redact) for tool in tools]
        return names - frozenset.intersection(*told) if told else names
    except Exception:
        logger.exception("What is to be hidden of %s could not be found out: everything is.", tool_name)
        return names


def _masked(arguments: Any, hidden: frozenset[str]) -> Any:
    if not isinstance(arguments, dict):
        return MARK
    return {name: MARK if name in hidden else value for name, value in arguments.items()}


def _tools(name: str, agent_name: str) -> Iterator[Tool]:
    """The tools that may be meant: the agent's, or where no agent is named, every agent's of this name."""
    named = get_agent(agent_name)
    for agent in agents().values() if not agent_name else [named] if named else []:
        tool = find_tool(agent, name)
        if tool is not None:
            yield tool
