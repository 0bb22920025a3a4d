"""Start a turn, follow it, stop it."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.agents.registry import agents
from agora_agent.api import capacity, idempotency, streams
from agora_agent.api.base import AgoraView
from agora_agent.api.readers import Reader
from agora_agent.api.serializers.base import validated
from agora_agent.api.serializers.bodies import ChatBody
from agora_agent.exceptions import Forbidden, InvalidInput, NotVisible
from agora_agent.governance.ownership import get_run, get_thread, owns
from agora_agent.governance.principal import user_ref
from agora_agent.governance.rights import has_perm
from agora_agent.models import AgentRun, Thread
from agora_agent.streaming import frames
from agora_agent.turn import runner
from agora_agent.turn.runner import AgentRunInput

CANCEL_ANY = "agora_agent.cancel_any_run"


class ChatView(AgoraView):
    """``POST chat``: a message starts a run; the answer is its stream, or with ``Accept: application/json`` its ids."""

    http_method_names = ["post"]

    def post(self, request: Request) -> HttpResponseBase:
        body = self.body()
        thread = self._own_thread(body.get("threadId"))
        run_input = self._input(validated(ChatBody(data=body)), thread)
        key = idempotency.key_of(request)
        if not streams.wants_stream(request):
            run = self._start(key, body, run_input)
            ids = {"runId": str(run.pk), "threadId": str(run.thread_id)}
            headers = {"X-Agent-Run-Id": ids["runId"], "X-Agent-Thread-Id": ids["threadId"]}
            return Response(ids, status=202, headers=headers)
        streams.require_asgi(request)
        lease = capacity.acquire(self.actor)
        try:
            run = self._start(key, body, run_input)
            return streams.stream(run, Reader(request, self.actor, run), lease)
        except BaseException:
            lease.release()
            raise

    def _own_thread(self, thread_id: object) -> Thread | None:
        if thread_id is None:
            return None
        thread = get_thread(self.user, thread_id, self.tenant)
        if not owns(self.user, thread):
            raise Forbidden
        return thread

    def _input(self, data: dict[str, Any], thread: Thread | None) -> AgentRunInput:
        agent = data.get("agent") or (thread.default_agent if thread else "") or self._first_agent()
        kept_persona = thread.persona if thread and thread.default_agent == agent else ""
        impersonator = self.principal().impersonator
        return AgentRunInput(
            agent=agent,
            message=data["message"],
            user=self.user,
            tenant=self.tenant,
            thread_id=thread.pk if thread else None,
            persona=data.get("persona") or kept_persona,
            page_context=data.get("page_context"),
            requesters=(user_ref(impersonator),) if impersonator is not None else (),
        )

    def _first_agent(self) -> str:
        """For a client that names none: the first declared agent that the person may start."""
        for agent in agents().values():
            if agent.may_start(self.user):
                return agent.name
        raise InvalidInput(errors={"agent": ["There is no agent that you may start."]})

    def _start(self, key: str | None, body: dict[str, Any], run_input: AgentRunInput) -> AgentRun:
        def start() -> uuid.UUID:
            return runner.get().start(run_input)

        run_id = idempotency.start_once(key, self.actor, "POST chat", body, start)
        return AgentRun.objects.only("id", "thread_id").get(pk=run_id)


class ChatStreamView(AgoraView):
    """``GET chat/<runId>/stream``: the frames of a top-level run, from the first or after a number, then live."""

    http_method_names = ["get"]

    def get(self, request: Request, run_id: str) -> HttpResponseBase:
        run = get_run(self.user, run_id, self.tenant)
        # A child's frames are in its ancestor's stream.
        head = frames.heads([run.pk]).get(run.pk)
        if head is None:
            raise NotVisible
        after = min(streams.resume_after(request), head.last_seq)
        streams.require_asgi(request)
        lease = capacity.acquire(self.actor)
        try:
            self.note_foreign_read(run, "stream")
            return streams.stream(run, Reader(request, self.actor, run), lease, after)
        except BaseException:
            lease.release()
            raise


class ChatCancelView(AgoraView):
    """``POST chat/<runId>/cancel``: stop a run and what it has delegated."""

    http_method_names = ["post"]

    def post(self, request: Request, run_id: str) -> Response:
        run = self._run(run_id)
        self.body()
        stopped = runner.get(run.durable).cancel(run.pk, principal=self.principal())
        return Response({"aborted": stopped})

    def _run(self, run_id: str) -> AgentRun:
        may_cancel_any = has_perm(self.user, CANCEL_ANY)
        try:
            run = get_run(self.user, run_id, self.tenant)
        except NotVisible:
            found = self._any_run(run_id) if may_cancel_any else None
            if found is None:
                raise
            run = found
        if not owns(self.user, run) and not may_cancel_any:
            raise Forbidden
        return run

    def _any_run(self, run_id: str) -> AgentRun | None:
        try:
            return AgentRun.objects.filter(pk=uuid.UUID(run_id), tenant=self.tenant).first()
        except ValueError:
            return None
