"""Approve or reject a call that waits, or say what became of one whose outcome nobody knows."""

from __future__ import annotations

from typing import Any, Literal

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from agora_agent.api.base import AgoraView
from agora_agent.api.serializers.base import WireSerializer, validated
from agora_agent.api.serializers.bodies import DecisionBody, SettlementBody
from agora_agent.exceptions import InvalidInput
from agora_agent.governance import decisions
from agora_agent.governance.principal import Principal


class _ReplyView(AgoraView):
    http_method_names = ["post"]
    verdict: Literal["approve", "reject", "settle"]
    body_class: type[WireSerializer]

    def reply(self, principal: Principal) -> tuple[dict[str, Any], dict[str, Any]]:
        """Which call the body names, for governance, and what it says about it.

        Raises:
            NotVisible, Ambiguous, Forbidden: before any mistake in the body, of which a stranger learns nothing.
        """
        body = self.body()
        named = {"call_id": body.get("toolCallId"), "run_id": body.get("runId")}
        if named["call_id"] is None:
            raise InvalidInput(errors={"toolCallId": ["This field is required."]})
        try:
            return named, validated(self.body_class(data=body))
        except ValidationError:
            decisions.require_call(principal, **named, verdict=self.verdict)
            raise


class _DecideView(_ReplyView):
    verdict: Literal["approve", "reject"]
    body_class = DecisionBody

    def post(self, request: Request) -> Response:
        principal = self.principal()
        named, data = self.reply(principal)
        standing = decisions.decide(
            principal,
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

    verdict = "settle"
    body_class = SettlementBody

    def post(self, request: Request) -> Response:
        principal = self.principal()
        named, data = self.reply(principal)
        standing = decisions.settle(
            principal,
            **named,
            outcome=data["outcome"],
            output=data.get("output"),
            reason=data["reason"],
            client_label=data.get("client_label") or "",
        )
        return Response(standing.as_wire())
