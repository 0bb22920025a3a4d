"""A tool call, and a call that waits for its reader."""

from __future__ import annotations

import datetime as dt
from typing import Any

from rest_framework import serializers

from agora_agent.api.serializers.base import OptionalTextField, TimeField, WireField, WireSerializer
from agora_agent.api.serializers.people import person
from agora_agent.governance.shown import shown
from agora_agent.models import AgentRun, ToolCall
from agora_agent.streaming.wire import to_wire


class ToolCallSerializer(WireSerializer):
    """What was asked for, what was decided, what came of it. Needs ``decided_by`` and ``run`` loaded, and a
    ``reader`` in the context."""

    run_id = serializers.UUIDField(read_only=True)
    tool_call_id = serializers.CharField(source="call_id", read_only=True)
    tool_name = serializers.CharField(read_only=True)
    kind = serializers.CharField(read_only=True)
    status = serializers.CharField(read_only=True)
    round = serializers.IntegerField(read_only=True)
    input = serializers.SerializerMethodField()
    digest = serializers.SerializerMethodField()
    output = WireField()
    error = OptionalTextField()
    tier = OptionalTextField()
    approver = OptionalTextField()
    decided_by = serializers.SerializerMethodField()
    decided_at = TimeField()
    via = OptionalTextField()
    reason = OptionalTextField()
    child_run_id = serializers.UUIDField(read_only=True)
    created_at = TimeField()
    expires_at = TimeField()
    executed_at = TimeField()
    duration_ms = serializers.SerializerMethodField()

    def to_representation(self, instance: ToolCall) -> Any:
        self._shown = shown(instance, self.context["reader"])
        return super().to_representation(instance)

    def get_input(self, call: ToolCall) -> Any:
        return to_wire(self._shown.input)

    def get_digest(self, call: ToolCall) -> str | None:
        return self._shown.digest or None

    def get_decided_by(self, call: ToolCall) -> str | None:
        if call.decided_by is not None:
            return str(call.decided_by.get_username())
        return call.decided_ref or None

    def get_duration_ms(self, call: ToolCall) -> int | None:
        if call.launched_at is None or call.executed_at is None:
            return None
        return round((call.executed_at - call.launched_at) / dt.timedelta(milliseconds=1))


class ApprovalSerializer(ToolCallSerializer):
    """A waiting call as a card shows it. Needs run, thread and actor loaded; ``now`` in the context."""

    thread_id = serializers.UUIDField(source="run.thread_id", read_only=True)
    agent = serializers.CharField(source="run.agent", read_only=True)
    requester = serializers.SerializerMethodField()
    preview = serializers.SerializerMethodField()
    age = serializers.SerializerMethodField()

    def get_preview(self, call: ToolCall) -> str | None:
        return to_wire(self._shown.preview) or None

    def get_requester(self, call: ToolCall) -> dict[str, str] | None:
        return person(call.run.actor, call.run.actor_ref)

    def get_age(self, call: ToolCall) -> int:
        """Seconds that it has been waiting."""
        age: dt.timedelta = self.context["now"] - call.created_at
        return max(0, int(age.total_seconds()))


def calls_of(run: AgentRun) -> list[ToolCall]:
    """The calls of a run in the order in which they were asked for, ready to be told."""
    calls = run.tool_calls.select_related("decided_by").order_by("created_at", "step", "index", "id")
    found: list[ToolCall] = list(calls)
    for call in found:
        call.run = run
    return found
