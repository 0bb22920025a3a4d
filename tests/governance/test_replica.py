"""Rights on a replica that lags: what was taken away counts at once, for whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction
from django.db.utils import ConnectionHandler

from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import clear, find_tool, register
from agora_agent.exceptions import Forbidden, NotVisible
from agora_agent.governance.decisions import decide
from agora_agent.governance.holders import holder_names
from agora_agent.governance.launch import LaunchRefused, gate
from agora_agent.governance.ownership import inbox, may_decide, may_settle, visible_runs
from agora_agent.governance.policy import permitted, required
from agora_agent.governance.rights import fresh_user, has_perm
from agora_agent.models import ToolCall
from tests.governance.rows import RELEASE, at, grant, park, start

pytestmark = pytest.mark.django_db
PLAYGROUND = "agora_agent.use_playground"


class ReadsFromTheReplica:
    """A router as Django's documentation shows one: every read of accounts and rights, whatever the hints."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model._meta.app_label in ("auth", "contenttypes") else None


@pytest.fixture
def lag(people: Any, settings: Any) -> Iterator[None]:
    """From here on reads go to a copy of everybody's rights as they are now."""
    grant(people.alice, PLAYGROUND)
    users = get_user_model()
    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    replica = ConnectionHandler({"default": dict(options), "replica": dict(options)})["replica"]
    connections["replica"] = replica
    models = [ContentType, Permission, Group, users]
    through: list[Any] = [Group.permissions.through, users.groups.through, users.user_permissions.through]
    with replica.schema_editor() as editor:
        for model in models:
            editor.create_model(model)
    for model in [*models, *through]:
        model._base_manager.using("replica").bulk_create(model._base_manager.using("default"))
    settings.DATABASE_ROUTERS = ["tests.governance.test_replica.ReadsFromTheReplica"]
    yield
    settings.DATABASE_ROUTERS = []
    replica.close()
    del connections["replica"]


def take_away(people: Any) -> None:
    """Everything from everybody, on the primary."""
    for user in get_user_model().objects.using("default"):
        user.user_permissions.clear()
        user.groups.clear()
    # the replica has not heard of it
    assert get_user_model().objects.get(username="carol").has_perm(RELEASE)
    assert people.erin.groups.filter(name="Managers").exists()


def refusal(call: ToolCall) -> str:
    with pytest.raises(LaunchRefused) as refused, transaction.atomic():
        gate(call.pk, identity=call.identity)
    return refused.value.code


@pytest.mark.parametrize(
    ("tool", "approver"), [("release", "carol"), ("close", "erin"), ("release", "felix")]
)
def test_an_approver_who_lost_the_right_passes_no_gate(
    people: Any, lag: None, tool: str, approver: str
) -> None:
    decider = getattr(people, approver)
    approved, waiting = park(start(people.alice), tool), park(start(people.alice), tool, "c2")
    decide(at(decider), call_id="c1", verdict="approve")
    take_away(people)
    approved.refresh_from_db()
    assert refusal(approved) == "withdrawn"
    assert not may_decide(decider, waiting)
    assert not may_decide(fresh_user(decider.pk), waiting)
    assert not inbox(fresh_user(decider.pk)).exists()
    with pytest.raises((Forbidden, NotVisible)):
        decide(at(decider), call_id="c2", verdict="approve")


@pytest.mark.parametrize("gone", [{"permission": PLAYGROUND}, {"group": "Managers"}])
def test_a_requester_who_lost_the_right_runs_nothing(
    people: Any, lag: None, counter: Agent, gone: Any
) -> None:
    people.alice.groups.add(Group.objects.using("default").get())
    guarded = park(start(people.alice), "guarded")
    noted = park(start(people.alice), "note", "c2")
    clear()
    register(gated := replace(counter, public=False, **gone))
    for call in (guarded, noted):
        decide(at(people.alice), call_id=call.call_id, verdict="approve")
        call.refresh_from_db()
    assert permitted(find_tool(gated, "note"), people.alice, gated)
    take_away(people)
    assert [refusal(guarded), refusal(noted)] == ["not_permitted", "not_permitted"]
    assert not permitted(find_tool(gated, "note"), people.alice, gated)


def test_an_account_that_was_closed_decides_nothing(people: Any, lag: None) -> None:
    park(start(people.alice), "release")
    get_user_model().objects.using("default").filter(pk=people.carol.pk).update(is_active=False)
    with pytest.raises(Forbidden):
        decide(at(people.carol), call_id="c1", verdict="approve")


def test_who_there_is_to_ask_is_looked_up_where_it_is_written(people: Any, lag: None, counter: Agent) -> None:
    def answer(tool: str) -> str:
        named = find_tool(counter, tool)
        assert named is not None
        return required(named, {}, people.alice, start(people.alice)).decision

    assert (answer("release"), answer("close")) == ("ask", "ask")
    take_away(people)
    people.root.delete(using="default")
    assert (answer("release"), answer("close")) == ("deny", "deny")
    assert holder_names(f"permission:{RELEASE}", besides=[]) == []
    assert holder_names("group:Managers", besides=[]) == []
    Group.objects.using("default").all().delete()
    Permission.objects.using("default").filter(codename=RELEASE.split(".")[1]).delete()
    assert not has_perm(fresh_user(people.felix.pk), RELEASE)


def test_a_right_that_is_new_counts_at_once_too(people: Any, lag: None) -> None:
    call = park(start(people.alice), "release")
    right = Permission.objects.using("default").get(codename=RELEASE.split(".")[1])
    people.bob.user_permissions.through._base_manager.using("default").create(
        user_id=people.bob.pk, permission_id=right.pk
    )
    assert may_decide(people.bob, call)


def test_reading_and_settling_go_by_the_same_rights(people: Any, lag: None) -> None:
    call = park(start(people.alice), "release", status="interrupted")
    assert may_settle(people.gina, call)
    assert visible_runs(fresh_user(people.dave.pk)).exists()
    take_away(people)
    assert not may_settle(fresh_user(people.gina.pk), call)
    assert not visible_runs(fresh_user(people.dave.pk)).exists()
