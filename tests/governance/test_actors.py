from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.test import override_settings
from django.utils.functional import SimpleLazyObject

from agora_agent.governance.actors import Actor, resolve_actor

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


@pytest.mark.parametrize("resolver", [Broken, Wrong])
def test_a_resolver_that_fails_or_answers_otherwise_names_nobody(people: Any, resolver: Any) -> None:
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": resolver}):
        assert resolve_actor(request(people.alice)) is None
