"""Rows as turns leave them, and requests as clients make them."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import transaction
from django.test import Client

from agora_agent import codec
from agora_agent.agents.registry import find_tool, get_agent
from agora_agent.ids import new_id
from agora_agent.models import AgentRun, Thread, ToolCall
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData

JSON = {"accept": "application/json"}


def start(actor: Any, *, parent: AgentRun | None = None, **fields: Any) -> AgentRun:
    """A run that works on something, in a thread of its own."""
    thread = fields.pop("thread", None) or Thread.objects.create(actor=actor, actor_ref=str(actor.pk))
    run_id = new_id()
    with transaction.atomic():
        if parent is None:
            frames.open_stream(run_id)
        run = AgentRun.objects.create(
            **{
                "id": run_id,
                "thread": thread,
                "parent": parent,
                "root_id": run_id if parent is None else parent.root_id,
                "agent": "desk",
                "actor": actor,
                "actor_ref": str(actor.pk),
                "requesters": [f"user:{actor.pk}"],
                "phase": "executing",
                **fields,
            }
        )
    run.refresh_from_db()
    return run


def park(run: AgentRun, tool_name: str = "send_mail", call_id: str = "c1", **fields: Any) -> ToolCall:
    """A call of the run that waits for a person."""
    agent = get_agent("desk")
    assert agent is not None
    tool = find_tool(agent, tool_name)
    assert tool is not None
    arguments = fields.pop("input", {"what": "x"} if tool_name == "wipe" else {"to": "a"})
    call = ToolCall.objects.create(
        **{
            "run": run,
            "call_id": call_id,
            "tool_name": tool_name,
            "kind": tool.kind,
            "status": ToolCall.Status.PENDING_APPROVAL,
            "input": arguments,
            "identity": tool.identity,
            "digest": codec.digest(arguments, identity=tool.identity),
            "tier": tool.tier,
            "approver": tool.approver or "",
            **fields,
        }
    )
    call.refresh_from_db()
    return call


def say(run_id: uuid.UUID, *deltas: str) -> None:
    """Append text to a stream."""
    write(run_id, *[("", {"delta": delta}) for delta in deltas])


def write(run_id: uuid.UUID, *new: tuple[str, dict[str, Any]]) -> None:
    """Append frames to a stream."""
    with transaction.atomic():
        frames.append(run_id, [FrameData(event, data) for event, data in new])


def end(run_id: uuid.UUID, event: Any = "done", data: dict[str, Any] | None = None) -> None:
    """End a stream."""
    with transaction.atomic():
        frames.close(run_id, event, data)


def signed_in(user: Any, **options: Any) -> Client:
    """A browser of this user."""
    client = Client(**options)
    client.force_login(user)
    return client


def post(client: Client, path: str, body: Any = None, **headers: str) -> Any:
    """POST JSON, asking for JSON."""
    return client.post(
        f"/agent/{path}",
        {} if body is None else body,
        content_type="application/json",
        headers={**JSON, **headers},
    )


def get(client: Client, path: str, **headers: str) -> Any:
    """GET."""
    return client.get(f"/agent/{path}", headers=headers)
