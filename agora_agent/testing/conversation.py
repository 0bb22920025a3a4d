"""Chat Completions requests: are they well paired, and what do they mean in the providers' neutral form?"""

from __future__ import annotations

import json
import re
from typing import Any

from agora_agent.providers.base import ModelRequest, ToolSpec
from agora_agent.providers.scripted import Reply
from agora_agent.testing import turns

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STATUS = re.compile(r"\[(failed|rejected|expired|cancelled|interrupted)\] ")


def violation(body: Any) -> str:
    """What a strict server would refuse in this request; empty if nothing."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or not body["model"]:
        return "the request names no model"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "the request has no messages"
    waiting: list[str] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                return f"{where}: a result for {call_id!r}, which no call directly before it has"
            waiting.remove(call_id)
            if not isinstance(message.get("content"), str):
                return f"{where}: a result without text"
            continue
        if waiting:
            return f"{where}: the call {waiting[0]!r} before it has no result"
        for call in message.get("tool_calls") or ():
            if fault := _call_fault(call):
                return f"{where}: {fault}"
            waiting.append(call["id"])
        if len(set(waiting)) < len(waiting):
            return f"{where}: two calls have the same id"
    return f"the call {waiting[0]!r} at the end has no result" if waiting else ""


def _call_fault(call: Any) -> str:
    if not call.get("id"):
        return "a call without id"
    function = call.get("function") or {}
    if not _NAME.fullmatch(function.get("name") or ""):
        return f"a call of {function.get('name')!r}, which is no function name"
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        return f"arguments of {call['id']!r} are not JSON"
    return "" if isinstance(arguments, dict) else f"arguments of {call['id']!r} are not an object"


def as_request(body: dict[str, Any]) -> ModelRequest:
    """The request in the neutral form, for a script of the scripted model."""
    system = " ".join(str(m["content"]) for m in body["messages"] if m["role"] == "system")
    names: dict[str, str] = {}
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        match message["role"]:
            case "tool":
                messages.append(_result(message, names))
            case "assistant":
                calls = [
                    {
                        "id": call["id"],
                        "name": call["function"]["name"],
                        "input": json.loads(call["function"]["arguments"]),
                    }
                    for call in message.get("tool_calls") or ()
                ]
                names |= {call["id"]: call["name"] for call in calls}
                content = message.get("content") or ""
                messages.append({"role": "assistant", "content": content, "tool_calls": calls})
            case "user":
                messages.append({"role": "user", "content": message["content"]})
    specs = [
        ToolSpec(
            spec["function"]["name"], spec["function"].get("description", ""), spec["function"]["parameters"]
        )
        for spec in body.get("tools") or ()
    ]
    return ModelRequest(model=body["model"], system=system, messages=messages, tools=specs)


def _result(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    content, call_id = message["content"], message["tool_call_id"]
    status = _STATUS.match(content)
    return {
        "role": "tool",
        "id": call_id,
        "name": names.get(call_id, ""),
        "content": content[status.end() :] if status else content,
        "status": status[1] if status else "executed",
    }


def as_turn(reply: Reply, request: ModelRequest, word_delay: float = 0.0) -> list[turns.Item]:
    """A script's reply as the chunks of an answer."""
    items: list[turns.Item] = []
    for word in re.findall(r"\s*\S+\s*", reply.text):
        items.append(turns.text(word))
        if word_delay:
            items.append(turns.delay(word_delay))
    # The place in the conversation makes an id that no other turn of it has.
    place = len(request.messages)
    for index, (name, arguments) in enumerate(reply.calls):
        items.append(turns.tool_call(index, f"call_{place}_{index}", name, json.dumps(arguments)))
    items.append(turns.finish(reply.finish_reason or ("tool_calls" if reply.calls else "stop")))
    read = sum(len(str(message.get("content") or "").split()) for message in request.messages)
    items.append(turns.usage(read, len(reply.text.split()) + len(reply.calls)))
    return items
