"""Canonical JSON for everything that is stored and read back: journal, frames, arguments, audit.

Exact round trip for None, bool, int, finite float, str, list, dict with string keys, Decimal, datetime, date and
UUID (the last four as tagged objects). A tuple comes back as a list. Everything else is refused before anything
is written, so that a first execution and a replay hand on the same objects.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import uuid
from decimal import Decimal
from typing import Any

VERSION = 1
MAX_DEPTH = 64
#: A Decimal is written out in full: beyond this its zeros would fill the memory.
MAX_EXPONENT = 400

_TAGS = ("$date", "$datetime", "$decimal", "$dict", "$uuid")


class Unencodable(TypeError):
    """A value that cannot be stored and read back exactly."""


def _pack(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Unencodable(f"nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise Unencodable("NaN and infinity cannot be stored: use None or text")
        return value + 0.0  # -0.0 and 0.0 are one number
    if kind is list or kind is tuple:
        return [_pack(item, depth + 1) for item in value]
    if kind is dict:
        packed = {}
        for key, item in value.items():
            if type(key) is not str:
                raise Unencodable(f"object keys must be text, not {type(key).__name__}")
            packed[key] = _pack(item, depth + 1)
        return {"$dict": packed} if len(packed) == 1 and next(iter(packed)) in _TAGS else packed
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise Unencodable("NaN and infinity cannot be stored: use None or text")
        if not -MAX_EXPONENT < value.as_tuple().exponent < MAX_EXPONENT:  # type: ignore[operator]
            raise Unencodable("a number of more than 400 places cannot be stored")
        return {"$decimal": format(value, "f")}
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
        return {"$datetime": value.isoformat()}
    if isinstance(value, dt.date):
        return {"$date": value.isoformat()}
    if isinstance(value, uuid.UUID):
        return {"$uuid": str(value)}
    if isinstance(value, str):  # enums of text and lazy translations made concrete
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    raise Unencodable(
        f"{kind.__module__}.{kind.__qualname__} cannot be stored: return JSON types, Decimal, dates or UUID"
    )


def _unpack(pairs: dict[str, Any]) -> Any:
    if len(pairs) != 1:
        return pairs
    [(tag, value)] = pairs.items()
    match tag:
        case "$decimal":
            return Decimal(value)
        case "$datetime":
            return dt.datetime.fromisoformat(value)
        case "$date":
            return dt.date.fromisoformat(value)
        case "$uuid":
            return uuid.UUID(value)
        case "$dict":
            return value
    return pairs


class _Decoder(json.JSONDecoder):
    """Unpacks tagged objects from the outside in, so that an escaped ``$dict`` keeps its inside as it was."""

    def decode(self, text: str, *args: Any) -> Any:
        return _walk(super().decode(text, *args))


def _walk(value: Any) -> Any:
    if isinstance(value, list):
        return [_walk(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1 and "$dict" in value:
            return {key: _walk(item) for key, item in value["$dict"].items()}
        unpacked = _unpack(value)
        if unpacked is value:
            return {key: _walk(item) for key, item in value.items()}
        return unpacked
    return value


def encode(value: Any) -> str:
    """The stored form: ASCII only, so NUL and lone surrogates travel as escapes through any database.

    Raises:
        Unencodable: a value outside the list above.
    """
    return json.dumps(
        _pack(value, 0), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def decode(text: str) -> Any:
    """The value that :func:`encode` was given."""
    return json.loads(text, cls=_Decoder)


def roundtrip(value: Any) -> Any:
    """``value`` as a later reader will see it."""
    return decode(encode(value))


def canonical(value: Any) -> bytes:
    """The form that digests are made of: as :func:`encode`, but UTF-8; lone surrogates are refused.

    Raises:
        Unencodable: as :func:`encode`, and for text that is not valid Unicode.
    """
    text = json.dumps(
        _pack(value, 0), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Unencodable("text with a lone surrogate is not valid Unicode") from error


def digest(value: Any, *, identity: str) -> str:
    """SHA-256 (hex) over a version line, the tool's identity and the canonical form of ``value``."""
    head = f"agora-digest-{VERSION}\n{identity}\n".encode()
    return hashlib.sha256(head + canonical(value)).hexdigest()


def clean_text(text: str) -> str:
    """``text`` as every database can hold it: NUL shown as U+2400, halves of a surrogate pair joined, a lone
    half replaced by U+FFFD."""
    text = text.replace("\x00", "\u2400")
    if any("\ud800" <= char <= "\udfff" for char in text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
