"""What clients may send. Keys that are not listed here are ignored: state comes from the server alone."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from agora_agent.api.serializers.base import TextField, WireSerializer
from agora_agent.streaming.wire import dumps

MAX_PAGE_CONTEXT_BYTES = 16384
MAX_REASON = 4096
MAX_LABEL = 64


class PageContextField(serializers.DictField):
    """What the page that the person looks at says about itself."""

    def to_internal_value(self, data: Any) -> Any:
        value = super().to_internal_value(data)
        if len(dumps(value).encode("utf-8", "replace")) > MAX_PAGE_CONTEXT_BYTES:
            raise serializers.ValidationError(f"At most {MAX_PAGE_CONTEXT_BYTES} bytes of JSON.")
        return value


class ChatBody(WireSerializer):
    """A message for an agent. ``threadId`` has been looked up before."""

    message = TextField()
    agent = TextField(required=False, allow_null=True, allow_blank=True, max_length=64)
    persona = TextField(required=False, allow_null=True, allow_blank=True, max_length=64)
    page_context = PageContextField(required=False, allow_null=True)
    attachments = serializers.ListField(required=False, allow_null=True)
    regenerate = serializers.JSONField(required=False, allow_null=True)

    def validate_message(self, value: str) -> str:
        if not value.strip():
            raise serializers.ValidationError("Say something.")
        return value

    def validate_attachments(self, value: list[Any] | None) -> list[Any]:
        if value:
            raise serializers.ValidationError("Attachments are not supported.")
        return []

    def validate_regenerate(self, value: Any) -> bool:
        if value not in (None, False):
            raise serializers.ValidationError("Regenerating is not supported.")
        return False


class DecisionBody(WireSerializer):
    """A reply to an approval. The call has been looked up before."""

    digest = TextField(required=False, allow_null=True, max_length=64)
    round = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=32767)
    comment = TextField(required=False, allow_null=True, allow_blank=True, max_length=MAX_REASON)
    reason = TextField(required=False, allow_null=True, allow_blank=True, max_length=MAX_REASON)
    client_label = TextField(required=False, allow_null=True, allow_blank=True, max_length=MAX_LABEL)
    input = serializers.JSONField(required=False, allow_null=True)
    remember = serializers.JSONField(required=False, allow_null=True)

    def validate_input(self, value: Any) -> None:
        if value is not None:
            raise serializers.ValidationError("Approving with changes is not supported.")

    def validate_remember(self, value: Any) -> None:
        if value not in (None, False):
            raise serializers.ValidationError("Remembering a decision is not supported.")


class SettlementBody(WireSerializer):
    """What became of a call whose outcome nobody knows."""

    outcome = serializers.ChoiceField(choices=["again", "done", "failed"])
    output = serializers.JSONField(required=False, allow_null=True)
    reason = TextField(max_length=MAX_REASON)
    client_label = TextField(required=False, allow_null=True, allow_blank=True, max_length=MAX_LABEL)


class ThreadBody(WireSerializer):
    """A new conversation."""

    title = TextField(required=False, allow_null=True, allow_blank=True, max_length=200)
    agent = TextField(required=False, allow_null=True, allow_blank=True, max_length=64)
    persona = TextField(required=False, allow_null=True, allow_blank=True, max_length=64)
