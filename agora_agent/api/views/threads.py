"""Conversations: the caller's own list, one with its messages, a new one."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.agents.registry import get_agent
from agora_agent.api.base import AgoraView
from agora_agent.api.filters import text
from agora_agent.api.paging import paginate
from agora_agent.api.serializers.base import validated
from agora_agent.api.serializers.bodies import ThreadBody
from agora_agent.api.serializers.threads import MessageSerializer, ThreadSerializer
from agora_agent.exceptions import InvalidInput
from agora_agent.governance.ownership import get_thread, visible_threads
from agora_agent.governance.shown import Reader, shown_requests
from agora_agent.models import Message, Thread

MESSAGES = 200


class ThreadsView(AgoraView):
    """``GET threads``: the newest first; ``POST threads``: an empty one."""

    http_method_names = ["get", "head", "post"]

    def get(self, request: Request) -> Response:
        rows = visible_threads(self.user, self.tenant).filter(actor=self.user, actor_kind=self.actor.kind)
        if search := text(request.query_params, "search"):
            rows = rows.filter(title__icontains=search)
        page = paginate(rows, request.query_params, by="updated_at")
        return Response({"results": ThreadSerializer(page.rows, many=True).data, "next": page.next})

    def post(self, request: Request) -> Response:
        data = validated(ThreadBody(data=self.body()))
        agent, persona = data.get("agent") or "", data.get("persona") or ""
        self._check(agent, persona)
        thread = Thread.objects.create(
            actor=self.user,
            actor_kind=self.actor.kind,
            actor_ref=str(self.user.pk),
            tenant=self.tenant,
            title=data.get("title") or "",
            default_agent=agent,
            persona=persona,
        )
        thread.refresh_from_db()
        return Response(ThreadSerializer(thread).data, status=201)

    def _check(self, agent_name: str, persona: str) -> None:
        agent = get_agent(agent_name)
        if agent_name and (agent is None or not agent.may_start(self.user)):
            raise InvalidInput(errors={"agent": ["There is no such agent that you may start."]})
        if persona and (agent is None or agent.persona(persona) is None):
            raise InvalidInput(errors={"persona": ["The agent has no such persona."]})


class ThreadView(AgoraView):
    """``GET threads/<id>``: its newest messages; ``?before=<seq>``: earlier ones."""

    http_method_names = ["get", "head"]

    def get(self, request: Request, thread_id: str) -> Response:
        thread = get_thread(self.user, thread_id, self.tenant)
        messages = Message.objects.filter(thread=thread)
        if (before := self._before(request)) is not None:
            messages = messages.filter(seq__lt=before)
        newest = list(messages.order_by("-seq")[: MESSAGES + 1])
        told = newest[:MESSAGES][::-1]
        data: dict[str, Any] = dict(ThreadSerializer(thread).data)
        requests = shown_requests(told, thread, Reader(self.user))
        data["messages"] = MessageSerializer(told, many=True, context={"requests": requests}).data
        data["before"] = told[0].seq if len(newest) > MESSAGES else None
        self.note_foreign_read(thread, "thread")
        return Response(data)

    def _before(self, request: Request) -> int | None:
        value = request.query_params.get("before")
        if not value:
            return None
        if not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise InvalidInput(errors={"before": ["The number of a message."]})
        return int(value)
