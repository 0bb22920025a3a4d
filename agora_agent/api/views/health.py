"""What runs here, and whether it keeps up."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.api import capacity
from agora_agent.api.base import AgoraView
from agora_agent.conf import agora_settings
from agora_agent.models import AgentRun
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
                "durable": state.on,
                "durableAsked": state.asked,
                "durableReason": state.reason or None,
                "dispatcher": agora_settings.DISPATCHER if state.on else None,
                "oldestReadySeconds": runner.get().oldest_ready_seconds(),
                "parked": live.filter(phase=AgentRun.Phase.WAITING).count(),
                "streams": capacity.held(),
            }
        )
