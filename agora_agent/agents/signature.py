"""From a function's signature and docstring to a pydantic model and the JSON schema that a model is shown."""

from __future__ import annotations

import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import PydanticUndefined

from agora_agent.agents.schemas import tidy
from agora_agent.exceptions import ConfigurationError

_REFUSED = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.VAR_POSITIONAL: "*variadic",
    inspect.Parameter.VAR_KEYWORD: "**variadic",
}


@dataclass(frozen=True)
class Signature:
    """What a tool function takes: its arguments as a model, and the parameter that gets the context."""

    arguments: type[BaseModel]
    schema: dict[str, Any]
    #: Parameter name to the field that holds it: fields have neutral names, so that a parameter may be called
    #: ``copy`` or ``schema`` without shadowing a method of the model.
    fields: dict[str, str]
    context: str


def read_signature(
    function: Callable[..., Any], context_type: type, localns: Mapping[str, Any] | None = None
) -> Signature:
    """The signature of ``function``; the parameter annotated ``context_type`` is left out of the arguments.

    Raises:
        ConfigurationError: a parameter without a type, of a kind that has no name, or of an unknown type.
    """
    where = f"{function.__module__}.{function.__qualname__}"
    hints = _hints(function, where, {context_type.__name__: context_type, **(localns or {})})
    documented = parameter_docs(inspect.getdoc(function) or "")
    context = ""
    fields: dict[str, str] = {}
    definitions: dict[str, tuple[Any, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, parameter.annotation)
        if hint is context_type:
            context = parameter.name
            continue
        if parameter.kind in _REFUSED:
            raise ConfigurationError(
                f"{where}: parameter {parameter.name!r} is {_REFUSED[parameter.kind]}. Name each argument, "
                "or give the tool an input_schema."
            )
        if hint is inspect.Parameter.empty:
            raise ConfigurationError(f"{where}: parameter {parameter.name!r} needs a type.")
        field = f"p{len(fields)}"
        fields[parameter.name] = field
        definitions[field] = _definition(parameter, hint, documented.get(parameter.name))
    model, schema = _build(where, function.__name__, definitions)
    return Signature(model, schema, fields, context)


def _hints(function: Callable[..., Any], where: str, localns: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(localns), include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the type {error.name!r} is not known when the tool is declared. Import it outside "
            "``if TYPE_CHECKING``."
        ) from error


def _definition(parameter: inspect.Parameter, hint: Any, doc: str | None) -> tuple[Any, Any]:
    default = parameter.default
    infos = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, FieldInfo)]
    if isinstance(default, FieldInfo):
        infos.append(default)
    extra: dict[str, Any] = {"alias": parameter.name}
    if doc and not any(info.description for info in infos):
        extra["description"] = doc
    if default is inspect.Parameter.empty:
        default = ...
    elif isinstance(default, FieldInfo):
        hint, default = Annotated[hint, default], _field_default(default)
    return Annotated[hint, Field(**extra)], default


def _field_default(info: FieldInfo) -> Any:
    if info.default_factory is not None:
        return Field(default_factory=info.default_factory)
    return ... if info.default is PydanticUndefined else info.default


class _Schema(GenerateJsonSchema):
    ignored_warning_kinds = set()


def _build(
    where: str, name: str, definitions: dict[str, tuple[Any, Any]]
) -> tuple[type[BaseModel], dict[str, Any]]:
    config = ConfigDict(
        extra="forbid", allow_inf_nan=False, validate_default=True, arbitrary_types_allowed=False
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            model: type[BaseModel] = create_model(name, __config__=config, **definitions)  # type: ignore[call-overload]
            schema = model.model_json_schema(by_alias=True, schema_generator=_Schema)
    except (PydanticUserError, PydanticJsonSchemaWarning, TypeError) as error:
        raise ConfigurationError(
            f"{where}: no JSON schema can be made of its parameters: {str(error).splitlines()[0]}"
        ) from error
    return model, tidy(schema)


def first_paragraph(function: Callable[..., Any]) -> str:
    """What the docstring says first, on one line."""
    doc = inspect.getdoc(function) if isinstance(function, types.FunctionType) else None
    return " ".join((doc or "").split("\n\n", 1)[0].split())


_SECTION = re.compile(r"^(\w[\w ]*):\s*$")
_PARAMETER = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def parameter_docs(doc: str) -> dict[str, str]:
    """The "Args:" section of a Google style docstring: parameter name to what it says."""
    found: dict[str, str] = {}
    inside, indent, current = False, 0, ""
    for line in doc.splitlines():
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if _SECTION.match(line):
            inside, indent, current = text.lower().startswith(("args", "arguments", "parameters")), 0, ""
            continue
        if not inside or not text:
            continue
        if depth == 0:
            inside = False
            continue
        indent = indent or depth
        match = _PARAMETER.match(text) if depth == indent else None
        if match:
            current = match[1]
            found[current] = match[2]
        elif current:
            found[current] = f"{found[current]} {text}".strip()
    return {name: " ".join(text.split()) for name, text in found.items() if text}
