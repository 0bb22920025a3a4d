"""A run: where it is in its life, what it waits for, what it has used."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.conf import settings
from django.db.models import Count, Q, Sum
from rest_framework import serializers

from agora_agent.api.serializers.base import OptionalTextField, TimeField, WireSerializer, told_time
from agora_agent.api.serializers.people import person
from agora_agent.exceptions import reader_message
from agora_agent.models import AgentRun, ToolCall, Usage

_WAITS = {
    ToolCall.Status.PENDING_APPROVAL: "approval",
    ToolCall.Status.PENDING_ANSWERS: "answers",
    ToolCall.Status.INTERRUPTED: "operator",
}
_TOKENS = ("input", "output", "cache_read", "reasoning")


class RunSerializer(WireSerializer):
    """Needs ``actor`` loaded, and :func:`facts` of all the runs in the context."""

    run_id = serializers.UUIDField(source="id", read_only=True)
    thread_id = serializers.UUIDField(read_only=True)
    parent_run_id = serializers.UUIDField(source="parent_id", read_only=True)
    root_run_id = serializers.UUIDField(source="root_id", read_only=True)
    agent = serializers.CharField(read_only=True)
    persona = OptionalTextField()
    status = serializers.CharField(read_only=True)
    phase = serializers.SerializerMethodField()
    waiting_on = serializers.SerializerMethodField()
    durable = serializers.BooleanField(read_only=True)
    actor = serializers.SerializerMethodField()
    created_at = TimeField()
    started_at = TimeField()
    finished_at = TimeField()
    finish_reason = OptionalTextField()
    steps = serializers.IntegerField(read_only=True)
    model = OptionalTextField()
    usage = serializers.SerializerMethodField()
    cost_usd = serializers.SerializerMethodField()
    error = serializers.SerializerMethodField()

    def get_phase(self, run: AgentRun) -> str | None:
        return None if run.is_terminal else run.phase

    def get_waiting_on(self, run: AgentRun) -> list[dict[str, Any]]:
        waits: list[dict[str, Any]] = self.context["waits"].get(run.pk, [])
        return [] if run.is_terminal else waits

    def get_actor(self, run: AgentRun) -> dict[str, str] | None:
        return person(run.actor, run.actor_ref)

    def get_usage(self, run: AgentRun) -> dict[str, int | None]:
        used = self.context["usage"].get(run.pk, {})
        return {name: used.get(name) for name in map(_wire_tokens, _TOKENS)}

    def get_cost_usd(self, run: AgentRun) -> str | None:
        cost: str | None = self.context["usage"].get(run.pk, {}).get("cost")
        return cost

    def get_error(self, run: AgentRun) -> dict[str, str] | None:
        if not run.error_code:
            return None
        message = reader_message(run.error_code, run.error_detail, expose=settings.DEBUG)
        return {"code": run.error_code, "message": message}


def facts(runs: Sequence[AgentRun]) -> dict[str, Any]:
    """The serializer's context for these runs, in two queries."""
    return {
        "waits": _waits([run.pk for run in runs if not run.is_terminal]),
        "usage": _usage([run.pk for run in runs]),
    }


def _wire_tokens(name: str) -> str:
    return {"cache_read": "cacheRead"}.get(name, name) + "Tokens"


def _waits(run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, list[dict[str, Any]]]:
    found: dict[uuid.UUID, list[dict[str, Any]]] = defaultdict(list)
    delegated = Q(kind=ToolCall.Kind.AGENT, child_run_id__isnull=False)
    calls = (
        ToolCall.objects.unsettled()
        .filter(Q(status__in=list(_WAITS)) | delegated, run_id__in=list(run_ids))
        .order_by("step", "index")
    )
    for call in calls:
        wait = {
            "kind": _WAITS.get(ToolCall.Status(call.status), "child"),
            "toolCallId": call.call_id,
            "approver": call.approver or None,
            "since": told_time(call.created_at),
            "expiresAt": told_time(call.expires_at),
        }
        if call.child_run_id is not None:
            wait["runId"] = str(call.child_run_id)
        found[call.run_id].append(wait)
    return found


def _usage(run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, dict[str, Any]]:
    rows = (
        Usage.objects.filter(run_id__in=list(run_ids))
        .values("run_id")
        .annotate(
            **{_wire_tokens(name): Sum(f"{name}_tokens") for name in _TOKENS},
            cost=Sum("cost_usd"),
            unknown=Count("pk", filter=Q(cost_usd=None)),
        )
        .order_by()
    )
    found = {}
    for row in rows:
        # One part that is unknown makes the sum unknown: it is never told as if it were nothing.
        row["cost"] = None if row.pop("unknown") or row["cost"] is None else format(row["cost"], "f")
        found[row.pop("run_id")] = row
    return found
