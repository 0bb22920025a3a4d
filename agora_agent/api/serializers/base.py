"""Serializers whose fields are named in Python's way and read in the wire's."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from rest_framework import serializers

from agora_agent.db import aware
from agora_agent.models import write_alias
from agora_agent.streaming.wire import to_wire, utc


def camel(name: str) -> str:
    """``tool_call_id`` → ``toolCallId``."""
    return re.sub(r"_([a-z])", lambda match: match.group(1).upper(), name)


def told_time(value: dt.datetime | None) -> str | None:
    """The value of a column as ISO-8601 in UTC."""
    return None if value is None else utc(aware(value, write_alias()))


class WireSerializer(serializers.Serializer[Any]):
    """Each field travels under its name in camelCase, errors too; validated data has the names of the class."""

    def get_fields(self) -> dict[str, Any]:
        renamed = {}
        for name, field in super().get_fields().items():
            wire = camel(name)
            if isinstance(field, serializers.SerializerMethodField):
                field.method_name = field.method_name or f"get_{name}"
            elif wire != name and field.source is None:
                field.source = name
            renamed[wire] = field
        return renamed


class WireField(serializers.Field[Any, Any, Any, Any]):
    """Any stored value, in plain JSON."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, **options)

    def to_representation(self, value: Any) -> Any:
        return to_wire(value)


class TimeField(serializers.DateTimeField):
    """ISO-8601 in UTC."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, **options)

    def to_representation(self, value: Any) -> Any:
        return told_time(value)


class OptionalTextField(serializers.CharField):
    """Stored as empty text, told as null."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, **options)

    def to_representation(self, value: Any) -> Any:
        return to_wire(str(value)) if value else None


class TextField(serializers.CharField):
    """Text and nothing that could be made into text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


def validated(serializer: serializers.BaseSerializer[Any]) -> dict[str, Any]:
    """The serializer's validated data.

    Raises:
        ValidationError: with messages per field.
    """
    serializer.is_valid(raise_exception=True)
    data: dict[str, Any] = serializer.validated_data
    return data
