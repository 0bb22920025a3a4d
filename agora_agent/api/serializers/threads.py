"""A conversation and its messages."""

from __future__ import annotations

from rest_framework import serializers

from agora_agent.api.serializers.base import OptionalTextField, TimeField, WireField, WireSerializer


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
    """One message, with the results of the calls that it made."""

    message_id = serializers.UUIDField(source="id", read_only=True)
    seq = serializers.IntegerField(read_only=True)
    role = serializers.CharField(read_only=True)
    content = serializers.CharField(read_only=True)
    tool_calls = WireField()
    tool_results = WireField()
    model = OptionalTextField()
    run_id = serializers.UUIDField(read_only=True)
    created_at = TimeField()
