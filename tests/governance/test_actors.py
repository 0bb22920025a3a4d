from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.test import Client, override_settings
from django.utils.functional import SimpleLazyObject

from agora_agent.governance.actors import Actor, resolve_actor
from agora_agent.models import AgentRun

pytestmark = pytest.mark.django_db


def request(user: Any) -> Any:
    return SimpleNamespace(user=user)


def test_the_actor_is_the_signed_in_user(people: Any) -> None:
    for user in (people.alice, SimpleLazyObject(lambda: people.alice)):
        actor = resolve_actor(request(user))
        assert actor is not None
        assert (actor.user, actor.tenant, actor.ref) == (people.alice, "", f"user:{people.alice.pk}")


def test_anybody_else_is_nobody(people: Any) -> None:
    people.bob.is_active = False
    unsaved = type(people.bob)(username="new")
    stranger = SimpleNamespace(pk=people.alice.pk, is_authenticated=True, is_active=True)
    for user in (AnonymousUser(), None, people.bob, unsaved, stranger, people.alice.pk):
        assert resolve_actor(request(user)) is None
    assert resolve_actor(SimpleNamespace()) is None


class Broken:
    def resolve(self, request: Any) -> Actor | None:
        raise RuntimeError("no idea")


class Wrong:
    def resolve(self, request: Any) -> Any:
        return request.user


class Anonymous:
    def resolve(self, request: Any) -> Any:
        return Actor("user", AnonymousUser())  # type: ignore[arg-type]


@pytest.mark.parametrize("resolver", [Broken, Wrong, Anonymous])
def test_a_resolver_that_fails_or_answers_otherwise_names_nobody(
    people: Any, resolver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": resolver}):
        assert resolve_actor(request(people.alice)) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]


class Service:
    def resolve(self, request: Any) -> Actor:
        return Actor("service", request.user)


def test_an_actor_of_another_kind_is_nobody_and_the_log_names_the_setting(
    people: Any, caplog: pytest.LogCaptureFixture
) -> None:
    browser = Client()
    browser.force_login(people.alice)
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": Service}):
        assert resolve_actor(request(people.alice)) is None
        [record] = caplog.records
        assert "ACTOR_RESOLVER" in record.getMessage()
        assert "'service'" in record.getMessage()
        for path in ("runs", "threads", "approvals"):
            assert browser.get(f"/agent/{path}").status_code == 401
        sent = {"message": "hi", "agent": "counter"}
        response = browser.post(
            "/agent/chat", sent, "application/json", headers={"accept": "application/json"}
        )
        assert response.status_code == 401
    assert not AgentRun.objects.exists()


class OfATenant:
    def resolve(self, request: Any) -> Actor:
        return Actor("user", request.user, tenant="north")


def test_a_resolver_may_say_where_a_user_belongs(people: Any) -> None:
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": OfATenant}):
        actor = resolve_actor(request(people.alice))
    assert actor is not None
    assert (actor.ref, actor.tenant) == (f"user:{people.alice.pk}", "north")
