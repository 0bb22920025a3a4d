"""Values as they leave the system in JSON: what a browser can hold exactly, and text that every database can."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

from agora_agent.codec import clean_text

#: The largest integer that a JavaScript number holds exactly.
MAX_SAFE_INTEGER = 2**53 - 1

# Line ends to some parsers, though not to SSE's own: escaped, nobody can mistake them.
_UNICODE_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


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


def dumps(value: Any) -> str:
    """Strict JSON on one line: no NaN, and none of the characters that any parser takes for a line end."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNICODE_LINE_ENDS)
