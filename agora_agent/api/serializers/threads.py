"""A conversation and its messages."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from agora_agent.api.serializers.base import OptionalTextField, TimeField, WireField, WireSerializer
from agora_agent.models import Message
from agora_agent.streaming.wire import to_wire


class ThreadSerializer(WireSerializer):
    """A conversation without its messages."""

    thread_id = serializers.UUIDField(source="id", read_only=True)
    title = serializers.CharField(read_only=True)
    agent = OptionalTextField(source="default_agent")
    persona = OptionalTextField()
    active_run_id = serializers.UUIDField(read_only=True)
    created_at = TimeField()
    updated_at = TimeField()


class MessageSerializer(WireSerializer):
    """One message, with the results of the calls that it made. ``requests`` in the context: what each asked for."""

    message_id = serializers.UUIDField(source="id", read_only=True)
    seq = serializers.IntegerField(read_only=True)
    role = serializers.CharField(read_only=True)
    content = serializers.CharField(read_only=True)
    tool_calls = serializers.SerializerMethodField()
    tool_results = WireField()
    model = OptionalTextField()
    run_id = serializers.UUIDField(read_only=True)
    created_at = TimeField()

    def get_tool_calls(self, message: Message) -> Any:
        return to_wire(self.context["requests"][message.pk])
