"""JSON schemas: tidied for the model, closed against unknown keys, digested for the tool's identity."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped,unused-ignore]

from agora_agent import codec
from agora_agent.exceptions import ConfigurationError

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_DATA = ("default", "const", "enum", "examples")
_WORDING = ("title", "description", "examples", "$comment")
_COMPOSED = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas")
_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties")


def _rewrite(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """``schema`` with ``change`` applied to every subschema. Names of properties and data stay as they are."""
    if not isinstance(schema, dict):
        return deepcopy(schema)
    done: dict[str, Any] = {}
    for key, value in change(schema).items():
        if key in _DATA:
            done[key] = deepcopy(value)
        elif key in _MAPS and isinstance(value, dict):
            done[key] = {name: _rewrite(item, change) for name, item in value.items()}
        elif key in _LISTS and isinstance(value, list):
            done[key] = [_rewrite(item, change) for item in value]
        else:
            done[key] = _rewrite(value, change)
    return done


def tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """A generated schema without its generated titles; objects with properties take no others."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        part = {key: value for key, value in part.items() if key != "title"}
        if "properties" in part:
            part["additionalProperties"] = False
        return part

    tidied: dict[str, Any] = _rewrite(schema, change)
    tidied.setdefault("properties", {})
    tidied["additionalProperties"] = False
    return tidied


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """A written schema that refuses unknown keys wherever its author did not say otherwise.

    Raises:
        ConfigurationError: it is not a JSON schema of an object, or refers outside itself.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigurationError(f"input_schema is not a JSON schema: {error.message}") from error
    if schema.get("type") != "object":
        raise ConfigurationError('input_schema must be of "type": "object".')
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise ConfigurationError(f"input_schema may refer inside itself only, not to {reference!r}.")
    closed: dict[str, Any] = _close(schema)
    return closed


def _close(schema: Any) -> Any:
    # Only downwards through properties and items: a branch of allOf or anyOf sees a part of the keys and would
    # refuse those of its neighbours.
    if not isinstance(schema, dict):
        return deepcopy(schema)
    closed = deepcopy(schema)
    if isinstance(closed.get("properties"), dict):
        closed["properties"] = {name: _close(item) for name, item in closed["properties"].items()}
    if isinstance(closed.get("items"), dict):
        closed["items"] = _close(closed["items"])
    if closed.get("type") == "object" and not any(key in closed for key in _OPEN):
        composed = any(key in closed for key in _COMPOSED)
        if composed or "properties" in closed:
            closed["unevaluatedProperties" if composed else "additionalProperties"] = False
    return closed


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def with_defaults(value: Any, schema: Any) -> Any:
    """``value`` with the defaults of the properties that it leaves out."""
    if isinstance(value, list) and isinstance(schema, dict):
        return [with_defaults(item, schema.get("items")) for item in value]
    if not isinstance(value, dict) or not isinstance(schema, dict):
        return value
    filled = dict(value)
    properties = schema.get("properties")
    for name, part in properties.items() if isinstance(properties, dict) else ():
        if name in filled:
            filled[name] = with_defaults(filled[name], part)
        elif isinstance(part, dict) and "default" in part:
            filled[name] = deepcopy(part["default"])
    return filled


def schema_digest(schema: dict[str, Any]) -> str:
    """32 hex digits of what ``schema`` demands: wording and the order of its keys do not count."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        part = {key: value for key, value in part.items() if key not in _WORDING}
        required = part.get("required")
        if isinstance(required, list):
            part["required"] = sorted(required)
        return part

    return hashlib.sha256(codec.canonical(_rewrite(schema, change))).hexdigest()[:32]
