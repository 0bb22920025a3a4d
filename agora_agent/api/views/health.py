"""What runs here, and whether it keeps up."""

from __future__ import annotations

from typing import Any

from django.db.models import Min
from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.api import capacity
from agora_agent.api.base import AgoraView
from agora_agent.conf import agora_settings
from agora_agent.db import database_now
from agora_agent.models import AgentRun, write_alias
from agora_agent.turn import runner


class HealthView(AgoraView):
    """``GET health``: for everybody who is signed in."""

    http_method_names = ["get", "head"]

    def get(self, request: Request) -> Response:
        state = runner.durable_state()
        live = AgentRun.objects.live()
        return Response(
            {
                "runner": "durable" if state.on else "inline",
                "durable": {"asked": state.asked, "on": state.on, "reason": state.reason or None},
                "dispatcher": agora_settings.DISPATCHER if state.on else None,
                "oldestReadySeconds": self._oldest_ready(),
                "parked": live.filter(phase=AgentRun.Phase.WAITING).count(),
                "streams": capacity.held(),
            }
        )

    def _oldest_ready(self) -> float | None:
        """How long the run that has waited longest for a process has waited; None if none waits."""
        health: Any = getattr(runner.get(), "health", None)
        if health is not None:
            return health().get("oldest_ready_seconds") or None
        queued = AgentRun.objects.live().filter(phase=AgentRun.Phase.QUEUED)
        since = queued.aggregate(since=Min("created_at"))["since"]
        return None if since is None else (database_now(write_alias()) - since).total_seconds()
