"""What all our views share: who asks, what may be sent, how a refusal looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import DataError, connections, transaction
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.views import APIView

from agora_agent.api import problems
from agora_agent.api.bodies import read_object, require_json
from agora_agent.api.origins import SAFE_METHODS, require_own_origin
from agora_agent.governance import audit
from agora_agent.governance.actors import Actor, impersonator_of, resolve_actor
from agora_agent.governance.principal import Principal
from agora_agent.models import AgentRun, Thread


class IgnoreAccept(BaseContentNegotiation):
    """There is one renderer: a client that only accepts event streams can read a refusal too."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class AgoraView(APIView):
    """Authenticates as the project does, then asks the project's resolver for the actor.

    The project's ``permission_classes`` are not asked: who may do what is governance's to say.
    """

    permission_classes = ()
    renderer_classes = (problems.JSONRenderer,)
    parser_classes = (JSONParser,)
    content_negotiation_class = IgnoreAccept
    versioning_class = None
    metadata_class = None

    actor: Actor

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        view = super().as_view(**initkwargs)
        # Each view says itself what is one transaction: an answer is only given for what is committed.
        for alias in connections:
            transaction.non_atomic_requests(using=alias)(view)
        return view

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method not in SAFE_METHODS:
            require_json(request._request)
            require_own_origin(request._request)

    def perform_authentication(self, request: Request) -> None:
        try:
            super().perform_authentication(request)
        except (ValueError, DataError) as error:
            # Credentials that no database can look up (a NUL in a user name) are nobody's.
            raise exceptions.NotAuthenticated from error
        actor = resolve_actor(request)
        if actor is None:
            raise exceptions.NotAuthenticated
        self.actor = actor

    def get_authenticate_header(self, request: Request) -> str:
        # A scheme of our own: a browser shows no password dialog for it, and DRF answers 401 instead of 403.
        return 'Agora realm="agent"'

    def get_exception_handler(self) -> Callable[..., Any]:
        return problems.handle

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response

    @property
    def user(self) -> Any:
        """The actor's user."""
        return self.actor.user

    @property
    def tenant(self) -> str:
        """The actor's tenant."""
        return self.actor.tenant

    def body(self) -> dict[str, Any]:
        """The request's JSON object."""
        return read_object(self.request._request)

    def principal(self) -> Principal:
        """The person at this door, as this door knows them."""
        authenticator = self.request.successful_authenticator
        return Principal(
            user=self.user,
            via="rest",
            auth_method=type(authenticator).__name__ if authenticator else "",
            address=self.request.META.get("REMOTE_ADDR") or "",
            impersonator=impersonator_of(self.request._request),
            tenant=self.tenant,
        )

    def note_foreign_read(self, row: AgentRun | Thread, action: str) -> None:
        """Record that somebody reads what is not theirs."""
        if row.actor_id != self.user.pk:
            audit.access(action, principal=self.principal(), subject_ref=f"{action}:{row.pk}")
