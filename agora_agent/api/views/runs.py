"""Runs: the list, one in full, and the calls that wait for the reader."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.api import journal
from agora_agent.api.base import AgoraView
from agora_agent.api.filters import instant, row_id, text
from agora_agent.api.paging import paginate
from agora_agent.api.serializers.calls import ApprovalSerializer, ToolCallSerializer, calls_of
from agora_agent.api.serializers.runs import RunSerializer, facts
from agora_agent.db import database_now
from agora_agent.exceptions import InvalidInput
from agora_agent.governance.ownership import get_run, inbox, visible_runs
from agora_agent.governance.shown import Reader
from agora_agent.models import AgentRun, write_alias


class RunsView(AgoraView):
    """``GET runs``: the caller's, newest first; ``?scope=all``: everybody's that they may see."""

    http_method_names = ["get", "head"]

    def get(self, request: Request) -> Response:
        page = paginate(self._rows(request.query_params), request.query_params)
        results = RunSerializer(page.rows, many=True, context=facts(page.rows)).data
        return Response({"results": results, "next": page.next})

    def _rows(self, params: Any) -> QuerySet[AgentRun]:
        rows = visible_runs(self.user, self.tenant).select_related("actor")
        if params.get("scope") != "all":
            rows = rows.filter(actor=self.user, actor_kind=self.actor.kind)
        if status := params.get("status"):
            if status not in AgentRun.Status.values:
                raise InvalidInput(errors={"status": [f"One of {', '.join(AgentRun.Status.values)}."]})
            rows = rows.filter(status=status)
        if agent := text(params, "agent"):
            rows = rows.filter(agent=agent)
        if (thread := row_id(params, "thread")) is not None:
            rows = rows.filter(thread_id=thread)
        if (start := instant(params, "from")) is not None:
            rows = rows.filter(created_at__gte=start)
        if (end := instant(params, "to")) is not None:
            rows = rows.filter(created_at__lt=end)
        return rows


class RunView(AgoraView):
    """``GET runs/<id>``: with calls and children; with the journal for holders of ``view_run_payload``."""

    http_method_names = ["get", "head"]

    def get(self, request: Request, run_id: str) -> Response:
        run = get_run(self.user, run_id, self.tenant)
        children = list(run.children.select_related("actor").order_by("created_at", "id"))
        context = facts([run, *children])
        data: dict[str, Any] = dict(RunSerializer(run, context=context).data)
        reader = Reader(self.user)
        calls = ToolCallSerializer(calls_of(run), many=True, context={"reader": reader})
        data["toolCalls"] = calls.data
        data["children"] = RunSerializer(children, many=True, context=context).data
        if reader.sees_payloads:
            data["journal"] = journal.entries(run.pk)
        self.note_foreign_read(run, "run")
        return Response(data)


class ApprovalsView(AgoraView):
    """``GET approvals``: what waits for the caller to decide, oldest first."""

    http_method_names = ["get", "head"]

    def get(self, request: Request) -> Response:
        rows = inbox(self.user, self.tenant).select_related("run__actor", "decided_by")
        page = paginate(rows, request.query_params, newest_first=False)
        context = {"now": database_now(write_alias()), "reader": Reader(self.user)}
        results = ApprovalSerializer(page.rows, many=True, context=context).data
        return Response({"results": results, "next": page.next})
