"""A tool call's arguments: checked, completed with defaults, and given to the function in its own types."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from agora_agent import codec
from agora_agent.agents.schemas import with_defaults
from agora_agent.agents.signature import Signature
from agora_agent.exceptions import AgoraError

MAX_DEPTH = 32
#: Decimals are stored without exponent: 1e999999999 would be a gigabyte of zeros.
MAX_EXPONENT = 400
_SHOWN_ERRORS = 20


class InvalidToolInput(AgoraError):
    """The arguments do not fit the tool."""

    code = "invalid_input"
    status_code = 400

    def __init__(self, errors: list[dict[str, str]]) -> None:
        lines = [f"{error['path'] or 'arguments'}: {error['message']}" for error in errors[:_SHOWN_ERRORS]]
        if len(errors) > _SHOWN_ERRORS:
            lines.append(f"and {len(errors) - _SHOWN_ERRORS} more")
        super().__init__("The arguments do not fit the tool. " + "; ".join(lines), errors=errors)


def _fault(path: str, message: str) -> dict[str, str]:
    return {"path": path, "message": message}


def faults(value: Any, path: str = "", depth: int = 0) -> Iterator[dict[str, str]]:
    """What in ``value`` no tool may be given, whatever its schema says."""
    if depth > MAX_DEPTH:
        yield _fault(path, f"nested more than {MAX_DEPTH} deep")
    elif isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            yield _fault(path, "not valid Unicode text (lone surrogate)")
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield _fault(path, "NaN and infinity are not numbers here")
    elif isinstance(value, Decimal):
        if not value.is_finite():
            yield _fault(path, "NaN and infinity are not numbers here")
        elif (value and abs(value.adjusted()) > MAX_EXPONENT) or abs(
            int(value.as_tuple().exponent)
        ) > 2 * MAX_EXPONENT:
            yield _fault(path, "the number is too large or too small")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield _fault(path, "keys must be text")
                continue
            yield from faults(key, path, depth)
            yield from faults(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from faults(item, f"{path}.{index}" if path else str(index), depth + 1)
    elif value is not None and not isinstance(value, bool | int | dt.date | uuid.UUID):
        yield _fault(path, f"{type(value).__name__} is not a JSON type")


def _checked(raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidToolInput([_fault("", "must be a JSON object")])
    if found := list(faults(raw)):
        raise InvalidToolInput(found)
    return raw


def _stored(value: dict[str, Any]) -> dict[str, Any]:
    if found := list(faults(value)):
        raise InvalidToolInput(found)
    try:
        stored: dict[str, Any] = codec.roundtrip(value)
    except codec.Unencodable as error:
        raise InvalidToolInput([_fault("", str(error))]) from error
    return stored


def _parse(signature: Signature, raw: Mapping[str, Any]) -> BaseModel:
    try:
        # extra= reaches into nested models that were declared to ignore what they do not know.
        return signature.arguments.model_validate(dict(raw), extra="forbid")
    except ValidationError as error:
        raise InvalidToolInput(
            [
                _fault(".".join(map(str, item["loc"])), item["msg"])
                for item in error.errors(include_url=False, include_context=False, include_input=False)
            ]
        ) from None


def validate_signature(signature: Signature, raw: object) -> dict[str, Any]:
    """``raw`` as the signature understands it, in types that the codec stores."""
    parsed = _parse(signature, _checked(raw))
    dumped = parsed.model_dump(mode="python", by_alias=True, round_trip=True, warnings=False)
    return _stored({name: _plain(value, name) for name, value in dumped.items()})


def typed(signature: Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Stored arguments in the types that the function declares."""
    parsed = _parse(signature, arguments)
    return {name: getattr(parsed, field) for name, field in signature.fields.items()}


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, path)
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="python", by_alias=True, round_trip=True, warnings=False), path)
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{index}") for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        # A set has no order of its own, and the digest needs one.
        return sorted((_plain(item, path) for item in value), key=codec.encode)
    if value is None or isinstance(value, str | bool | int | float | Decimal | dt.date | uuid.UUID):
        return value
    if hasattr(value, "get_secret_value"):
        raise InvalidToolInput([_fault(path, "secret types cannot be arguments: use redact")])
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise InvalidToolInput([_fault(path, f"{type(value).__name__} cannot be stored")]) from error


def _key(key: Any) -> str:
    plain = to_jsonable_python(key)
    return plain if isinstance(plain, str) else str(plain)


def validate_schema(schema: dict[str, Any], raw: object) -> dict[str, Any]:
    """``raw`` with the schema's defaults, if it fits the schema."""
    filled = _floats(with_defaults(_checked(raw), schema))
    if found := list(faults(filled)):
        raise InvalidToolInput(found)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    errors = sorted(validator.iter_errors(filled), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        raise InvalidToolInput(
            [_fault(".".join(map(str, error.absolute_path)), error.message[:300]) for error in errors]
        )
    return _stored(filled)


def _floats(value: Any) -> Any:
    # A JSON schema knows numbers, not decimals.
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    return [_floats(item) for item in value] if isinstance(value, list) else value
