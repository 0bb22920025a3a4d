"""Rows as a turn leaves them when it parks, made without running one."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Permission
from django.db import connection, transaction
from django.utils import timezone

from agora_agent import codec
from agora_agent.agents.registry import find_tool, get_agent
from agora_agent.governance.principal import Principal
from agora_agent.ids import new_id
from agora_agent.models import AgentRun, Thread, ToolCall
from agora_agent.streaming import frames

#: A permission that every project with this app has.
RELEASE = "agora_agent.manage_prices"


def grant(user: Any, *permissions: str) -> None:
    for permission in permissions:
        app_label, codename = permission.split(".")
        user.user_permissions.add(
            Permission.objects.get(content_type__app_label=app_label, codename=codename)
        )


def start(actor: Any, *, parent: AgentRun | None = None, **fields: Any) -> AgentRun:
    thread = Thread.objects.create(actor=actor, actor_ref=str(actor.pk))
    run_id = new_id()
    with transaction.atomic():
        if parent is None:
            frames.open_stream(run_id)
        return AgentRun.objects.create(
            **{
                "id": run_id,
                "thread": thread,
                "parent": parent,
                "root_id": run_id if parent is None else parent.root_id,
                "agent": "counter",
                "actor": actor,
                "actor_ref": str(actor.pk),
                "requesters": [f"user:{actor.pk}"],
                **fields,
            }
        )


def park(run: AgentRun, tool_name: str, call_id: str = "c1", **fields: Any) -> ToolCall:
    """A call as its claim stores it: pending if the tool asks, else running unasked."""
    agent = get_agent("counter")
    assert agent is not None
    tool = find_tool(agent, tool_name)
    assert tool is not None
    arguments = fields.pop("input", {"to": "a"})
    waits = ToolCall.Status.PENDING_APPROVAL if tool.tier else ToolCall.Status.AUTO_EXECUTED
    call: ToolCall = ToolCall.objects.create(
        **{
            "run": run,
            "call_id": call_id,
            "tool_name": tool_name,
            "kind": tool.kind,
            "status": waits,
            "input": arguments,
            "identity": tool.identity,
            "digest": codec.digest(arguments, identity=tool.identity),
            "tier": tool.tier,
            "approver": tool.approver or "",
            "at_most_once": tool.kind == "action" and not tool.idempotent,
            **fields,
        }
    )
    return call


def at(user: Any, via: Any = "python", **fields: Any) -> Principal:
    """``user`` at a door."""
    return Principal(user, via, **fields)


def ago(**delta: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(**delta)


def all_at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """What each job returned or raised; they begin together, each on a connection of its own."""
    barrier = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)

    def work(place: int, job: Callable[[], Any]) -> None:
        try:
            barrier.wait(30)
            results[place] = job()
        except BaseException as error:
            results[place] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results
