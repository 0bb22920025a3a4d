from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import override_settings

from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import find_tool, register
from agora_agent.agents.tool import Tool
from agora_agent.exceptions import Forbidden
from agora_agent.governance.decisions import decide
from agora_agent.governance.holders import holder_names
from agora_agent.governance.policy import DeclaredApprovalPolicy, Requirement, permitted, required
from tests.governance.rows import RELEASE, at, grant, park, start

pytestmark = pytest.mark.django_db
PLAYGROUND = "agora_agent.use_playground"


def named(agent: Agent, name: str) -> Tool:
    found = find_tool(agent, name)
    assert found is not None
    return found


def policy(**settings: Any) -> Any:
    return override_settings(AGORA_AGENT=settings)


# -- may this person use this tool? ----------------------------------------------------------------------------------


def test_without_a_permission_whoever_may_start_the_agent_uses_its_tools(people: Any, counter: Agent) -> None:
    assert permitted(named(counter, "look"), people.bob, counter)
    assert permitted(named(counter, "note"), people.bob, counter)
    closed = replace(counter, public=False, group="Managers")
    assert not permitted(named(counter, "look"), people.bob, closed)
    assert permitted(named(counter, "look"), people.erin, closed)


def test_an_agent_that_says_nothing_is_for_nobody(people: Any, counter: Agent) -> None:
    silent = replace(counter, public=False)
    assert not permitted(named(counter, "look"), people.root, silent)


def test_a_tool_is_for_holders_of_its_permission(people: Any, counter: Agent) -> None:
    tool = named(counter, "guarded")
    assert not permitted(tool, people.bob, counter)
    grant(people.bob, PLAYGROUND)
    assert permitted(tool, people.bob, counter)
    assert permitted(tool, people.root, counter)


def test_a_permission_that_was_taken_away_counts_at_once(people: Any, counter: Agent) -> None:
    tool = named(counter, "guarded")
    grant(people.bob, PLAYGROUND)
    assert people.bob.has_perm(PLAYGROUND)
    people.bob.user_permissions.clear()
    assert people.bob.has_perm(PLAYGROUND)  # the object remembers it
    assert not permitted(tool, people.bob, counter)


@pytest.mark.parametrize(
    "permission",
    ["shop.nothing", "agora_agent.", ".x", "nothing", "", "agora_agent.USE_PLAYGROUND", "*.*", 7],
)
def test_a_permission_that_nobody_can_evaluate_is_refused_to_root_too(
    people: Any, counter: Agent, permission: Any
) -> None:
    tool = replace(named(counter, "guarded"), permission=permission)
    assert not permitted(tool, people.root, counter)


def test_accounts_that_are_gone_or_closed_use_nothing(people: Any, counter: Agent) -> None:
    tool = named(counter, "look")
    people.bob.delete()
    get_user_model().objects.filter(pk=people.erin.pk).update(is_active=False)
    assert not permitted(tool, people.bob, counter)
    assert not permitted(tool, people.erin, counter)
    assert not permitted(tool, None, counter)
    assert not permitted(None, people.alice, counter)
    assert not permitted(tool, people.alice, None)


def test_a_delegate_has_its_own_gate(people: Any, counter: Agent) -> None:
    register(Agent("vault", "Help.", permission=RELEASE))
    front = replace(counter, name="front", delegates=("vault", "gone"))
    register(front)
    assert not permitted(named(front, "vault"), people.bob, front)
    assert permitted(named(front, "vault"), people.carol, front)


class Yes:
    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool:
        return True


class Only:
    """Lets the tool named ``look`` through."""

    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool:
        return tool.name == "look"


class Truthy:
    def allows(self, tool: Tool, user: Any, agent: Agent) -> Any:
        return "yes"


class Broken:
    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool:
        raise RuntimeError("no idea")


class Deciding:
    def allows(self, tool: Tool, user: Any, agent: Agent) -> bool:
        with pytest.raises(Forbidden):
            decide(at(user), call_id="c1", verdict="approve")
        return True


def test_a_projects_policy_narrows_and_does_not_widen(people: Any, counter: Agent) -> None:
    with policy(TOOL_POLICY=Yes):
        assert permitted(named(counter, "look"), people.bob, counter)
        assert not permitted(named(counter, "guarded"), people.bob, counter)
    with policy(TOOL_POLICY=Only):
        assert permitted(named(counter, "look"), people.bob, counter)
        assert not permitted(named(counter, "note"), people.bob, counter)


@pytest.mark.parametrize("kind", [Truthy, Broken, object, "tests.governance.nowhere.Policy"])
def test_a_policy_that_fails_or_answers_otherwise_denies(people: Any, counter: Agent, kind: Any) -> None:
    with policy(TOOL_POLICY=kind):
        assert not permitted(named(counter, "look"), people.root, counter)


def test_a_policy_does_not_decide(people: Any, counter: Agent) -> None:
    call = park(start(people.alice), "note")
    with policy(TOOL_POLICY=Deciding):
        assert permitted(named(counter, "look"), people.alice, counter)
    call.refresh_from_db()
    assert call.status == "pending_approval"


# -- must somebody be asked? -----------------------------------------------------------------------------------------


def test_reads_run_and_actions_ask_whom_they_name(people: Any, counter: Agent) -> None:
    run = start(people.alice)
    asked = {
        name: required(named(counter, name), {}, people.alice, run)
        for name in ("look", "note", "release", "close", "guarded")
    }
    assert asked["look"] == Requirement("allow")
    assert asked["note"] == asked["guarded"] == Requirement("ask", "confirm")
    assert asked["release"] == Requirement("ask", "authorise", f"permission:{RELEASE}")
    assert asked["close"] == Requirement("ask", "authorise", "group:Managers")


def test_the_declared_deadline_is_asked_for(people: Any, counter: Agent) -> None:
    tool = replace(named(counter, "note"), expires_after=timedelta(hours=1))
    assert required(tool, {}, people.alice, start(people.alice)).expires_after == timedelta(hours=1)


@pytest.mark.parametrize(
    "approver", ["permission:shop.nothing", "group:Nobody", "permission:x", "group:managers"]
)
def test_where_nobody_can_be_named_nothing_runs(people: Any, counter: Agent, approver: str) -> None:
    tool = replace(named(counter, "release"), approver=approver)
    answer = DeclaredApprovalPolicy().require(tool, {}, people.alice, start(people.alice))
    assert answer.decision == "deny"
    assert approver.replace(":", " ") in answer.reason


def test_where_nobody_but_the_requester_could_be_asked_nothing_runs(people: Any, counter: Agent) -> None:
    tool = named(counter, "release")
    people.root.delete()
    assert required(tool, {}, people.carol, start(people.alice)).decision == "ask"
    answer = required(tool, {}, people.carol, start(people.carol))
    assert answer.decision == "deny"
    assert "nobody but the requester" in answer.reason
    also = start(people.alice, requesters=[f"user:{people.carol.pk}", "service:9", "user:x"])
    assert required(tool, {}, people.alice, also).decision == "deny"
    grant(people.bob, RELEASE)
    assert required(tool, {}, people.alice, also).decision == "ask"
    get_user_model().objects.filter(pk=people.bob.pk).update(is_active=False)
    assert required(tool, {}, people.alice, also).decision == "deny"


def test_where_nobody_is_left_in_the_group_nothing_runs(people: Any, counter: Agent) -> None:
    tool, run = named(counter, "close"), start(people.alice)
    Group.objects.get(name="Managers").user_set.clear()
    assert required(tool, {}, people.alice, run).decision == "deny"


def test_holders_of_permissions_from_elsewhere_may_exist(people: Any, counter: Agent) -> None:
    run = start(people.carol)
    people.root.delete()
    backends = ["django.contrib.auth.backends.ModelBackend", "tests.governance.test_policy.Directory"]
    with override_settings(AUTHENTICATION_BACKENDS=backends):
        assert required(named(counter, "release"), {}, people.carol, run).decision == "ask"


class Directory:
    """Permissions that another system keeps, without a list of who has them."""

    def authenticate(self, request: Any, **credentials: Any) -> None: ...

    def has_perm(self, user: Any, perm: str, obj: Any = None) -> bool:
        return user.username == "bob" and perm == RELEASE


def answering(answer: Any) -> type:
    class Policy:
        def require(self, tool: Tool, arguments: Any, user: Any, run: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    return Policy


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        "allow",
        RuntimeError("no idea"),
        Requirement("maybe"),  # type: ignore[arg-type]
        Requirement(None),  # type: ignore[arg-type]
        Requirement("ask"),
        Requirement("ask", "authorise"),
        Requirement("ask", "confirm", "group:Managers"),
        Requirement("ask", "confirm", None),  # type: ignore[arg-type]
        Requirement("ask", "authorise", "group:Nobody"),
        Requirement("ask", "confirm", expires_after=timedelta(0)),
        Requirement("ask", "confirm", expires_after=60),  # type: ignore[arg-type]
        Requirement("deny", reason="not today"),
    ],
)
def test_an_approval_policy_that_fails_or_answers_otherwise_denies(
    people: Any, counter: Agent, answer: Any
) -> None:
    with policy(APPROVAL_POLICY=answering(answer)):
        denied = required(named(counter, "note"), {}, people.alice, start(people.alice))
    assert denied.decision == "deny"
    assert denied.reason


@pytest.mark.parametrize(
    "answer",
    [
        Requirement("allow"),
        Requirement("ask", "confirm"),
        Requirement("ask", "authorise", "group:Managers", timedelta(minutes=5)),
    ],
)
def test_a_projects_approval_policy_is_heard(people: Any, counter: Agent, answer: Requirement) -> None:
    with policy(APPROVAL_POLICY=answering(answer)):
        assert required(named(counter, "note"), {}, people.alice, start(people.alice)) == answer


def test_a_card_names_the_few_who_may_decide(people: Any) -> None:
    assert holder_names(f"permission:{RELEASE}", besides=[]) == ["carol"]
    assert holder_names("group:Managers", besides=[]) == ["erin"]
    assert holder_names(f"permission:{RELEASE}", besides=[f"user:{people.carol.pk}"]) == ["root"]
