"""Approve or reject a call that waits, or say what became of one whose outcome nobody knows."""

from __future__ import annotations

from typing import Any, Literal

from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.api.base import AgoraView
from agora_agent.api.serializers.base import validated
from agora_agent.api.serializers.bodies import DecisionBody, SettlementBody
from agora_agent.exceptions import InvalidInput
from agora_agent.governance import decisions
from agora_agent.governance.ownership import get_call
from agora_agent.models import ToolCall


class _ReplyView(AgoraView):
    """Looks the call up before anything else in the body is judged: a stranger learns nothing from a mistake."""

    http_method_names = ["post"]
    waiting: tuple[str, ...] = ToolCall.PENDING

    def named(self, body: dict[str, Any]) -> dict[str, Any]:
        """Which call the body names, for governance.

        Raises:
            NotVisible, Ambiguous: as its routes answer.
        """
        call_id, run_id = body.get("toolCallId"), body.get("runId")
        if call_id is None:
            raise InvalidInput(errors={"toolCallId": ["This field is required."]})
        get_call(self.user, call_id, run_id=run_id, tenant=self.tenant, waiting=self.waiting)
        return {"call_id": call_id, "run_id": run_id}


class _DecideView(_ReplyView):
    verdict: Literal["approve", "reject"]

    def post(self, request: Request) -> Response:
        body = self.body()
        named = self.named(body)
        data = validated(DecisionBody(data=body))
        standing = decisions.decide(
            self.principal(),
            **named,
            verdict=self.verdict,
            reason=data.get("reason") or data.get("comment") or "",
            digest=data.get("digest"),
            round=data.get("round"),
            client_label=data.get("client_label") or "",
        )
        return Response(standing.as_wire())


class ApproveView(_DecideView):
    """``POST tool-call/approve``."""

    verdict = "approve"


class RejectView(_DecideView):
    """``POST tool-call/reject``."""

    verdict = "reject"


class SettleView(_ReplyView):
    """``POST tool-call/settle``."""

    waiting = (ToolCall.Status.INTERRUPTED,)

    def post(self, request: Request) -> Response:
        body = self.body()
        named = self.named(body)
        data = validated(SettlementBody(data=body))
        standing = decisions.settle(
            self.principal(),
            **named,
            outcome=data["outcome"],
            output=data.get("output"),
            reason=data["reason"],
            client_label=data.get("client_label") or "",
        )
        return Response(standing.as_wire())
