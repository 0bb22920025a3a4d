"""The neutral conversation in the form of Chat Completions."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from decimal import Decimal
from typing import Any

from agora_agent.codec import clean_text
from agora_agent.providers.base import ModelRequest

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def payload(request: ModelRequest) -> dict[str, Any]:
    """The body of the request."""
    messages = [{"role": "system", "content": clean_text(request.system)}] if request.system else []
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages + [_message(message) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": spec.name, "description": spec.description, "parameters": spec.schema},
            }
            for spec in request.tools
        ]
    return body


def _message(message: dict[str, Any]) -> dict[str, Any]:
    text = clean_text(str(message.get("content") or ""))
    match message["role"]:
        case "tool":
            # The API has no field for it, and "no such order" alone could be a result.
            status = message.get("status", "executed")
            told = text if status == "executed" else f"[{status}] {text}"
            return {"role": "tool", "tool_call_id": message["id"], "content": told}
        case "assistant" if message.get("tool_calls"):
            calls = [_call(call) for call in message["tool_calls"]]
            return {"role": "assistant", "content": text or None, "tool_calls": calls}
    return {"role": message["role"], "content": text}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    # Servers refuse a history with a name that they would not have allowed a tool to have, and some parse the
    # arguments again: "" would fail there.
    name = _FOREIGN.sub("_", str(call.get("name") or ""))[:64] or "unnamed"
    text = json.dumps(call.get("input") or {}, default=_as_text, ensure_ascii=False, allow_nan=False)
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": clean_text(text)}}


def _as_text(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to a model")
