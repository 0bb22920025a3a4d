"""Values in plain JSON types: what a browser can hold exactly, and what a model reads."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

from agora_agent.codec import clean_text

#: The largest integer that a JavaScript number holds exactly.
MAX_SAFE_INTEGER = 2**53 - 1


def utc(value: dt.datetime | None) -> str | None:
    """ISO-8601 in UTC with a ``Z``; None stays None. A naive time is taken as UTC."""
    if value is None:
        return None
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return f"{value.isoformat()}Z"


def to_wire(value: Any) -> Any:
    """``value`` in plain JSON types: large integers and Decimals as text, times in UTC, text cleaned.

    Values of other types are handed on as they are: whoever encodes them refuses them by name.
    """
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value) if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else str(int(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return utc(value) if value.tzinfo is not None else value.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {to_wire(key): to_wire(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    return value
