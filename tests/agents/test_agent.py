"""Declaring an agent, and who may start it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User

from agora_agent.agents.agent import Agent, Persona
from agora_agent.agents.question import Question
from agora_agent.agents.tool import tool
from agora_agent.exceptions import ConfigurationError, InvalidInput


@tool
def look() -> str:
    """Look."""
    return ""


def test_agent_keeps_tuples_and_a_label() -> None:
    agent = Agent(name="back_office", instructions="Help.", tools=[look], delegates=["logistics"])
    assert (agent.tools, agent.delegates, agent.label) == ((look,), ("logistics",), "Back office")


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Clerk"},
        {"name": ""},
        {"tools": [print]},
        {"tools": [look, look]},
        {"tools": [look], "delegates": ["look"]},
        {"delegates": "logistics"},
        {"delegates": ["a b"]},
        {"ask": True, "delegates": ["ask"]},
        {"personas": [Persona("kind"), Persona("kind")]},
        {"personas": [Persona("kind", tools=("wipe",))]},
        {"public": True, "permission": "shop.use"},
        {"permission": "use"},
        {"max_steps": 0},
    ],
)
def test_agent_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Agent(**{"name": "clerk", "instructions": "", **options})


@pytest.mark.parametrize(("name", "tools"), [("Kind", None), ("kind", "look"), ("kind", ("Look",))])
def test_persona_that_makes_no_sense_is_refused(name: str, tools: Any) -> None:
    with pytest.raises(ConfigurationError):
        Persona(name, tools=tools)


def agent(**options: Any) -> Agent:
    return Agent(name="clerk", instructions="", **options)


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create(username="alice")


def test_without_a_word_nobody_may_start_outside_debug(alice: User, settings: Any) -> None:
    assert not agent().may_start(alice)
    settings.DEBUG = True
    assert agent().may_start(alice)
    assert not agent().may_start(AnonymousUser())


def test_public_agent_takes_every_active_user(alice: User) -> None:
    assert agent(public=True).may_start(alice)
    assert not agent(public=True).may_start(AnonymousUser())
    assert not agent(public=True).may_start(None)
    alice.is_active = False
    assert not agent(public=True).may_start(alice)


def test_permission_and_group_must_both_hold(alice: User) -> None:
    guarded = agent(permission="auth.view_group", group="Clerks")
    alice.user_permissions.add(Permission.objects.get(codename="view_group"))
    alice = User.objects.get(pk=alice.pk)
    assert agent(permission="auth.view_group").may_start(alice)
    assert not guarded.may_start(alice)
    alice.groups.add(Group.objects.create(name="Clerks"))
    assert guarded.may_start(alice)
    assert not agent(permission="auth.delete_group", group="Clerks").may_start(alice)


def test_right_that_cannot_be_found_out_is_a_no(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: User, permission: str) -> bool:
        raise RuntimeError("directory is down")

    monkeypatch.setattr(User, "has_perm", fails)
    assert not agent(permission="auth.view_group").may_start(alice)
    monkeypatch.setattr(User, "has_perm", lambda self, permission: "yes")
    assert not agent(permission="auth.view_group").may_start(alice)


@pytest.mark.parametrize(
    "options",
    [
        {"id": "a b"},
        {"text": " "},
        {"options": ["a", "a"]},
        {"options": ["a"], "default": ["b"]},
        {"default": ["a", "b"]},
    ],
)
def test_question_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Question(**{"id": "size", "text": "Which size?", **options})


def test_answers_are_checked_and_a_missing_one_is_the_default() -> None:
    size = Question("size", "Which size?", options=("s", "l"), default=("s",))
    assert size.check(["l"]) == ("l",)
    assert size.check(None) == ("s",)
    for wrong in (["m"], ["s", "l"], [1]):
        with pytest.raises(InvalidInput, match="size"):
            size.check(wrong)  # type: ignore[arg-type]
    assert Question("q", "?", options=("a",), free_text=True).check(["other"]) == ("other",)
