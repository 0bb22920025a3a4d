"""A counter with three kinds of tool, and the people around it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import isolated, register
from agora_agent.agents.tool import tool
from tests.governance.rows import RELEASE, grant
from tests.support.fixtures import clerk, either_runner, engine  # noqa: F401


@tool
def look(to: str) -> str:
    """Look something up."""
    return to


@tool(kind="action")
def note(to: str) -> str:
    """Write a note; whoever chats confirms."""
    return to


@tool(kind="action", approver=RELEASE)
def release(to: str) -> str:
    """Release something; a holder of the permission authorises."""
    return to


@tool(kind="action", approver="group:Managers", idempotent=True)
def close(to: str) -> str:
    """Close something; a manager authorises."""
    return to


@tool(kind="action", permission="agora_agent.use_playground")
def guarded(to: str) -> str:
    """Only for holders of a permission."""
    return to


@pytest.fixture(autouse=True)
def counter() -> Iterator[Agent]:
    with isolated():
        agent = Agent("counter", "Help.", tools=[look, note, release, close, guarded], public=True)
        register(agent)
        yield agent


@pytest.fixture
def people(db: None) -> Any:
    """alice asks; bob is anybody; carol holds the permission; erin manages; dave reads everything; root is root."""
    users = get_user_model().objects
    found = SimpleNamespace(
        **{
            name: users.create_user(name)
            for name in ("alice", "bob", "carol", "dave", "erin", "felix", "gina")
        },
        root=users.create_superuser("root"),
    )
    grant(found.carol, RELEASE)
    grant(found.dave, "agora_agent.view_all_runs")
    grant(found.felix, "agora_agent.decide_any_toolcall")
    grant(found.gina, "agora_agent.settle_unknown")
    found.erin.groups.add(Group.objects.create(name="Managers"))
    return found
