"""What runs here, and whether it keeps up."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.api import capacity
from agora_agent.api.base import AgoraView
from agora_agent.conf import agora_settings
from agora_agent.exceptions import ConfigurationError
from agora_agent.models import AgentRun
from agora_agent.turn import runner
from agora_agent.turn.runner import AgentRunner, DurableState


def _state() -> tuple[DurableState, AgentRunner | None]:
    """What is on and why not, and the runner for new runs; None where durable runs are required and cannot be."""
    try:
        return runner.durable_state(), runner.get()
    except ConfigurationError as error:
        return DurableState(asked=True, on=False, reason=error.message), None


class HealthView(AgoraView):
    """``GET health``: for everybody who is signed in."""

    http_method_names = ["get", "head"]

    def get(self, request: Request) -> Response:
        state, in_use = _state()
        live = AgentRun.objects.live()
        return Response(
            {
                "runner": in_use and ("durable" if in_use.durable else "inline"),
                "durable": state.on,
                "durableAsked": state.asked,
                "durableReason": state.reason or None,
                "dispatcher": agora_settings.DISPATCHER if state.on else None,
                "oldestReadySeconds": in_use and in_use.oldest_ready_seconds(),
                "parked": live.filter(phase=AgentRun.Phase.WAITING).count(),
                "streams": capacity.held(),
            }
        )
