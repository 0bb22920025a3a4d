"""JSON as models and their servers write it: parsed without losing digits, keys or halves of characters."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, NoReturn

from agora_agent.codec import clean_text


class BadJson(ValueError):
    """Text that is not the JSON that it should be; the message may be shown to the model."""


class _Repeated(dict[str, Any]):
    """An object in which a key came twice: known where it matters, tolerated where it does not."""

    key = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    repeated = _Repeated(value)
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated


def _number(text: str) -> float | Decimal:
    value = float(text)
    # Money is written 12.50: a float would lose the scale, and more digits than it holds.
    return value if repr(value) == text or not math.isfinite(value) else Decimal(text)


def _constant(text: str) -> NoReturn:
    raise BadJson(f"{text} is not a number in JSON")


def parse(text: str) -> Any:
    """The value of ``text``.

    Raises:
        BadJson: it is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson("arguments are not valid JSON") from error


def plain(value: Any) -> Any:
    """``value`` in plain dicts and lists.

    Raises:
        BadJson: a key came twice, a number is out of range, a text is not valid Unicode.
    """
    try:
        return _plain(value)
    except RecursionError as error:
        raise BadJson("arguments are nested too deep") from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Repeated):
        raise BadJson(f'duplicate key "{value.key}"')
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        raise BadJson("a text is not valid Unicode")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadJson("a number is out of range")
    if isinstance(value, Decimal) and abs(int(value.as_tuple().exponent)) > 400:
        raise BadJson("a number is out of range")
    return value


def arguments(text: str) -> dict[str, Any]:
    """The arguments of a call from the text that the model wrote; nothing and ``null`` mean none.

    Raises:
        BadJson: why they cannot be used.
    """
    if not text.strip():
        return {}
    # A pair of surrogates that was split over two deltas is two characters until now.
    value = plain(parse(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadJson("arguments are not a JSON object")
    return value


def is_complete(text: str) -> bool:
    """True if ``text`` is a whole JSON value."""
    try:
        parse(text)
    except BadJson:
        return False
    return True


class Joiner:
    """Joins surrogate pairs that a server split over two deltas, and makes the rest text that can be stored."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, delta: str) -> str:
        """What is complete so far."""
        text, self._half = self._half + delta, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return clean_text(text)

    def end(self) -> str:
        """What is left: U+FFFD for half a character."""
        half, self._half = self._half, ""
        return clean_text(half)
