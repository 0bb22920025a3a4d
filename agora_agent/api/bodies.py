"""JSON bodies with their bounds: bytes, depth, finite numbers, each key once."""

from __future__ import annotations

import json
import math
from typing import Any

from django.http import HttpRequest

from agora_agent.api.problems import NotJson, TooLarge
from agora_agent.codec import clean_text
from agora_agent.conf import agora_settings
from agora_agent.exceptions import InvalidInput

MAX_DEPTH = 32


def require_json(request: HttpRequest) -> None:
    """Refuse a body of another type. No body and no type is fine.

    Raises:
        NotJson: it has one.
    """
    if request.content_type == "application/json":
        return
    if request.content_type or _announced(request):
        raise NotJson


def read_object(request: HttpRequest) -> dict[str, Any]:
    """The body, cleaned of what no database holds; an absent one is an empty object.

    Raises:
        TooLarge: more bytes than the setting allows.
        InvalidInput: not a JSON object within the bounds.
    """
    limit = agora_settings.MAX_BODY_BYTES
    if _announced(request) > limit:
        raise TooLarge
    raw = request.read(limit + 1)
    if len(raw) > limit:
        raise TooLarge
    if not raw.strip():
        return {}
    try:
        body = json.loads(
            raw.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_each_key_once,
        )
    except (ValueError, RecursionError):
        raise InvalidInput("The body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise InvalidInput("The body is a JSON object.")
    if _depth(body) > MAX_DEPTH:
        raise InvalidInput(f"The body is nested more than {MAX_DEPTH} deep.")
    cleaned: dict[str, Any] = _clean(body)
    return cleaned


def _announced(request: HttpRequest) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        if deepest > MAX_DEPTH:
            break
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return deepest


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return clean_text(value) if isinstance(value, str) else value
