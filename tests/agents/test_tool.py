"""Declaring a tool: schema, identity, who must agree."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agora_agent.agents.tool import Tool, ToolContext, tool
from agora_agent.exceptions import ConfigurationError


@tool(kind="action", approver="group:Managers")
def refund_order(
    number: str, amount: Decimal, ctx: ToolContext, reason: Annotated[str, Field(max_length=80)] = "none"
) -> dict[str, Any]:
    """Pay money
    back.

    Longer story.

    Args:
        number: Which order,
            by its number.
        amount (Decimal): How much.
        ctx: Not for the model.

    Returns:
        reason: not an argument.
    """
    return {"number": number, "amount": amount, "reason": reason}


def test_schema_comes_from_the_signature_and_the_docstring() -> None:
    assert refund_order.description == "Pay money back."
    assert refund_order.schema["additionalProperties"] is False
    assert refund_order.schema["required"] == ["number", "amount"]
    assert list(refund_order.schema["properties"]) == ["number", "amount", "reason"]
    assert refund_order.schema["properties"]["number"] == {
        "type": "string",
        "description": "Which order, by its number.",
    }
    assert refund_order.schema["properties"]["reason"] == {
        "type": "string",
        "default": "none",
        "maxLength": 80,
    }


def test_bare_decorator_makes_a_read() -> None:
    @tool
    def stock() -> int:
        """How many."""
        return 4

    assert (stock.kind, stock.tier, stock.name, stock.description) == ("read", "", "stock", "How many.")
    assert stock.schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_tool_is_still_a_function() -> None:
    assert refund_order("1", Decimal(2), None)["number"] == "1"  # type: ignore[arg-type]
    assert refund_order.handler.__name__ == "refund_order"


def test_module_is_where_the_function_is() -> None:
    assert refund_order.module == "tests.agents.test_tool:refund_order"


@pytest.mark.parametrize(
    ("given", "approver", "tier"),
    [
        (None, None, "confirm"),
        ("shop.refund", "permission:shop.refund", "authorise"),
        ("permission:shop.refund", "permission:shop.refund", "authorise"),
        ("group:The bosses", "group:The bosses", "authorise"),
    ],
)
def test_tier_follows_from_the_approver(given: str | None, approver: str | None, tier: str) -> None:
    @tool(kind="action", approver=given, expires_after=timedelta(hours=1))
    def act() -> None: ...

    assert (act.approver, act.tier) == (approver, tier)


def nothing() -> None:
    """Do nothing."""


def variadic(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...
def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unserialisable(a: object = object()) -> None: ...
def schemaless(a: Callable[[], int]) -> None: ...
def not_a_type(a: ToolContext | None) -> None: ...


@pytest.mark.parametrize(
    "function", [variadic, keywords, positional, untyped, unknown, unserialisable, schemaless, not_a_type]
)
def test_signature_that_makes_no_schema_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=function.__name__):
        tool(function)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Refund"},
        {"name": "1st"},
        {"name": "a-b"},
        {"name": "x" * 65},
        {"name": "refund\n"},
        {"kind": "write"},
        {"version": ""},
        {"version": "a:b"},
        {"permission": "refund"},
        {"approver": "shop.refund"},
        {"tier": "confirm"},
        {"kind": "action", "approver": "managers"},
        {"kind": "action", "approver": "group:"},
        {"kind": "action", "approver": "user:carol"},
        {"kind": "action", "approver": "permission:refund"},
        {"kind": "action", "tier": "authorise"},
        {"kind": "action", "tier": "confirm", "approver": "shop.refund"},
        {"kind": "action", "tier": "none"},
        {"redact": ("card",)},
        {"input_schema": {"type": "array"}},
        {"input_schema": {"type": "object", "properties": 1}},
        {"input_schema": {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}},
    ],
)
def test_declaration_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        tool(**options)(nothing)


def test_types_of_the_enclosing_function_are_found() -> None:
    class Line(BaseModel):
        sku: str

    @tool
    def local(line: Line) -> str:
        return line.sku

    @tool(kind="read")
    def called(line: Line) -> str:
        return line.sku

    assert local.schema["$defs"]["Line"]["additionalProperties"] is False
    assert called.validate({"line": {"sku": "a"}}) == {"line": {"sku": "a"}}


def test_parameters_may_be_called_like_methods_of_a_model() -> None:
    @tool
    def odd(
        copy: int, schema: str, model_config: str, json: bool, self: int, title: str, description: str
    ) -> None:
        """Odd."""

    raw = {
        "copy": 1,
        "schema": "a",
        "model_config": "b",
        "json": True,
        "self": 2,
        "title": "c",
        "description": "d",
    }
    assert odd.validate(raw) == raw
    assert set(odd.schema["properties"]) == set(raw)


def test_description_of_a_field_beats_the_docstring() -> None:
    @tool
    def find(
        a: Annotated[str, Field(description="from the field")],
        b: int = Field(3, ge=1, description="default field"),
    ) -> None:
        """Find.

        Args:
            a: from the docstring
            b: from the docstring
        """

    assert find.schema["properties"]["a"]["description"] == "from the field"
    assert find.schema["properties"]["b"] == {
        "default": 3,
        "description": "default field",
        "minimum": 1,
        "type": "integer",
    }
    assert find.validate({"a": "x"}) == {"a": "x", "b": 3}


def identity(**options: Any) -> str:
    @tool(name="same", **options)
    def first(a: int, title: str = "x") -> None:
        """One wording.

        Args:
            a: one wording
        """

    return first.identity


def test_identity_is_stable_under_wording_moves_and_order() -> None:
    @tool(name="same", description="quite another", queue="slow", permission="shop.view")
    def second(
        title: str = "x", *, a: Annotated[int, Field(description="other", examples=[3], title="A")]
    ) -> None: ...

    assert second.identity == identity()
    assert second.identity.startswith("same:1:")
    assert len(second.identity.split(":")[2]) == 32


def test_identity_has_a_known_value() -> None:
    assert identity() == "same:1:e11af5be797d12e0432cc38f46bdd49d"


def test_identity_changes_with_what_is_demanded() -> None:
    @tool(name="same")
    def other_type(a: str, title: str = "x") -> None: ...

    @tool(name="same")
    def other_default(a: int, title: str = "y") -> None: ...

    @tool(name="same")
    def property_dropped(a: int) -> None: ...

    @tool(name="same")
    def bounded(a: Annotated[int, Field(le=5)], title: str = "x") -> None: ...

    identities = {other_type.identity, other_default.identity, property_dropped.identity, bounded.identity}
    assert len(identities | {identity(), identity(version="2")}) == 6


def test_property_named_like_a_wording_keyword_counts() -> None:
    def with_schema(properties: dict[str, Any]) -> Tool:
        schema = {"type": "object", "title": "T", "properties": properties}
        return tool(name="same", input_schema=schema)(nothing)

    string = {"type": "string"}
    assert with_schema({"title": string, "description": string}).identity != with_schema({}).identity
    assert (
        with_schema({"a": {"const": {"title": "x"}}}).identity != with_schema({"a": {"const": {}}}).identity
    )
    assert (
        with_schema({"a": {**string, "title": "x", "$comment": "y"}}).identity
        == with_schema({"a": string}).identity
    )


def test_context_type_imported_for_checkers_only_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_tools.py").write_text(
        textwrap.dedent("""
            from __future__ import annotations
            from typing import TYPE_CHECKING
            from agora_agent import tool
            if TYPE_CHECKING:
                from agora_agent import ToolContext

            @tool
            def whoami(ctx: ToolContext) -> str:
                return str(ctx.user)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lazy_tools", raising=False)
    assert importlib.import_module("lazy_tools").whoami.schema["properties"] == {}
