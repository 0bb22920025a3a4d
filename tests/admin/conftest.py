from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agora_agent import codec
from agora_agent.ids import new_id
from agora_agent.models import AgentRun, Thread, ToolCall
from tests.clerk import agents
from tests.clerk.model import CLERK, ClerkModel
from tests.support.people import person

EVERYTHING = ("view_all_runs", "cancel_any_run", "view_run_payload")


@pytest.fixture(autouse=True)
def only_the_admin(settings: Any) -> None:
    """These pages need no other door."""
    settings.ROOT_URLCONF = "tests.admin.urls"


@pytest.fixture
def clerk() -> Iterator[ClerkModel]:
    """The model's script, empty."""
    CLERK.reset()
    agents.OUTBOX.clear()
    yield CLERK
    CLERK.go_on.set()


@pytest.fixture
def alice(db: None) -> Any:
    """A requester, who is staff."""
    return person("alice", is_staff=True)


@pytest.fixture
def carol(db: None) -> Any:
    """Staff without a model permission, who holds the one that ``wipe`` asks for."""
    return person("carol", "clerk.wipe", is_staff=True)


@pytest.fixture
def operator(db: None) -> Any:
    """Reads and cancels everybody's runs."""
    return person("olga", *(f"agora_agent.{name}" for name in EVERYTHING), is_staff=True)


@pytest.fixture
def browse() -> Callable[..., Client]:
    """A signed-in browser that enforces CSRF like a real one."""

    def sign_in(user: Any, **options: Any) -> Client:
        client = Client(**options)
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture
def make_run() -> Callable[..., AgentRun]:
    """A run's row, for pages that only show it."""

    def make(actor: Any, *, thread: Thread | None = None, **fields: Any) -> AgentRun:
        thread = thread or Thread.objects.create(actor=actor, actor_ref=str(actor.pk))
        pk = fields.pop("id", None) or new_id()
        defaults = {"root_id": pk, "agent": "desk", "phase": "waiting", "requesters": [f"user:{actor.pk}"]}
        run = AgentRun(pk=pk, thread=thread, actor=actor, actor_ref=str(actor.pk), **{**defaults, **fields})
        run.save(force_insert=True)
        run.refresh_from_db()
        return run

    return make


@pytest.fixture
def make_call() -> Callable[..., ToolCall]:
    """A call of ``wipe`` that waits for somebody who holds ``clerk.wipe``."""

    def make(run: AgentRun, **fields: Any) -> ToolCall:
        arguments = fields.pop("input", {"what": "shelf 7"})
        defaults: dict[str, Any] = {
            "call_id": uuid.uuid4().hex,
            "tool_name": "wipe",
            "kind": "action",
            "status": "pending_approval",
            "tier": "authorise",
            "approver": "permission:clerk.wipe",
            "digest": codec.digest(arguments, identity="wipe"),
        }
        call = ToolCall.objects.create(run=run, input=arguments, **{**defaults, **fields})
        call.refresh_from_db()
        return call

    return make


@pytest.fixture
def in_an_hour() -> dt.datetime:
    """A deadline."""
    return timezone.now() + dt.timedelta(hours=1)
