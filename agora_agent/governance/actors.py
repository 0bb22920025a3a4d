"""From a request to the actor whose runs it starts and sees."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractUser

from agora_agent.conf import instance
from agora_agent.governance.rights import fresh_user

logger = logging.getLogger("agora_agent.governance")


#: The only kind of actor that there is.
USER = "user"


@dataclass(frozen=True, slots=True)
class Actor:
    """Whose the runs are. ``kind`` is "user": ownership, requesters and decisions know people with an account only."""

    kind: str
    user: AbstractUser
    tenant: str = ""

    @property
    def ref(self) -> str:
        """``<kind>:<primary key>``."""
        return f"{self.kind}:{self.user.pk}"


class ActorResolver(Protocol):
    """Names the actor of a request; None refuses it.

    It may find the user or the tenant in its own way. An actor of another kind than "user" is taken for nobody.
    """

    def resolve(self, request: Any) -> Actor | None: ...


class AuthActorResolver:
    """The signed-in, active user of ``request.user``; tenant is the empty string."""

    def resolve(self, request: Any) -> Actor | None:
        """The actor, or None for an anonymous, inactive or foreign kind of user."""
        user = getattr(request, "user", None)
        if not isinstance(user, get_user_model()) or user.pk is None:
            return None
        if user.is_authenticated is not True or user.is_active is not True:
            return None
        return Actor(kind=USER, user=user)


def resolve_actor(request: Any) -> Actor | None:
    """What the configured resolver says.

    One that raises, or answers with something else than an actor of kind "user", names nobody, and the log says so.
    """
    try:
        actor = instance("ACTOR_RESOLVER").resolve(request)
    except Exception:
        logger.exception("The actor resolver failed: the request has no actor.")
        return None
    if actor is None:
        return None
    if not isinstance(actor, Actor) or not isinstance(actor.user, get_user_model()) or actor.user.pk is None:
        logger.error(
            "AGORA_AGENT['ACTOR_RESOLVER'] answered %s: the request has no actor.", type(actor).__name__
        )
        return None
    if actor.kind != USER:
        logger.error(
            "AGORA_AGENT['ACTOR_RESOLVER'] named an actor of kind %r; only %r is supported: "
            "the request has no actor.",
            actor.kind,
            USER,
        )
        return None
    return actor


def impersonator_of(request: Any) -> Any:
    """Who is signed in as somebody else, as the usual packages mark it; None for an ordinary session."""
    named = getattr(request, "impersonator", None)
    if named is not None:
        return named
    history = request.session.get("hijack_history") if hasattr(request, "session") else None
    return fresh_user(history[-1]) if history else None
