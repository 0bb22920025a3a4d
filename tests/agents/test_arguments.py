"""What a tool is given: checked, completed, and exactly what is stored."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from agora_agent import codec
from agora_agent.abort import AbortSignal
from agora_agent.agents.tool import InvalidToolInput, Tool, ToolContext, tool


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Line(BaseModel):
    sku: str
    price: Decimal = Decimal("1.00")
    size: Size = Size.SMALL


class Box(TypedDict):
    width: int


@dataclasses.dataclass
class Stamp:
    at: dt.datetime


@tool
def everything(
    number: int = 0,
    ratio: float = 0.5,
    amount: Decimal = Decimal("0.00"),
    at: dt.datetime | None = None,
    day: dt.date | None = None,
    key: uuid.UUID | None = None,
    size: Size = Size.LARGE,
    word: Literal["a", "b"] = "a",
    lines: list[Line] | None = None,
    box: Box | None = None,
    stamp: Stamp | None = None,
    counts: dict[str, int] | None = None,
    tags: set[str] | None = None,
    pair: tuple[int, str] | None = None,
    lasting: dt.timedelta | None = None,
    anything: Any = None,
) -> dict[str, Any]:
    """Take all there is."""
    return dict(locals())


def context(abort: AbortSignal | None = None) -> ToolContext:
    return ToolContext(None, uuid.uuid4(), uuid.uuid4(), "c1", "r:c1", abort or AbortSignal())


KEY = uuid.UUID("0190a0c8-7e1c-7000-8000-000000000001")


@pytest.mark.parametrize(
    ("name", "raw", "stored", "given"),
    [
        ("number", 5, 5, 5),
        ("number", 2**80, 2**80, 2**80),
        ("number", 5.0, 5, 5),
        ("ratio", 1, 1.0, 1.0),
        ("ratio", Decimal("12.50"), 12.5, 12.5),
        ("amount", "12.50", Decimal("12.50"), Decimal("12.50")),
        ("amount", Decimal("12.50"), Decimal("12.50"), Decimal("12.50")),
        ("amount", 12.5, Decimal("12.5"), Decimal("12.5")),
        ("amount", 12, Decimal(12), Decimal(12)),
        (
            "amount",
            Decimal("0.1000000000000000000001"),
            Decimal("0.1000000000000000000001"),
            Decimal("0.1000000000000000000001"),
        ),
        (
            "at",
            "2026-01-02T03:04:05+02:00",
            dt.datetime(2026, 1, 2, 1, 4, 5, tzinfo=dt.UTC),
            dt.datetime(2026, 1, 2, 1, 4, 5, tzinfo=dt.UTC),
        ),
        ("day", "2026-01-02", dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
        ("key", str(KEY), KEY, KEY),
        ("size", "s", "s", Size.SMALL),
        ("word", "b", "b", "b"),
        (
            "lines",
            [{"sku": "x", "price": "2.50"}],
            [{"sku": "x", "price": Decimal("2.50"), "size": "s"}],
            [Line(sku="x", price=Decimal("2.50"))],
        ),
        ("box", {"width": 1}, {"width": 1}, {"width": 1}),
        (
            "stamp",
            {"at": "2026-01-02T00:00:00Z"},
            {"at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)},
            Stamp(dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        ),
        ("counts", {"a": 1}, {"a": 1}, {"a": 1}),
        ("tags", ["b", "a"], ["a", "b"], {"a", "b"}),
        ("pair", [1, "a"], [1, "a"], (1, "a")),
        ("lasting", "PT5M", "PT5M", dt.timedelta(minutes=5)),
        ("anything", {"x": [1, None, "a"]}, {"x": [1, None, "a"]}, {"x": [1, None, "a"]}),
        ("anything", {"$decimal": "1"}, {"$decimal": "1"}, {"$decimal": "1"}),
        ("at", None, None, None),
    ],
)
def test_stored_form_and_what_the_handler_gets(name: str, raw: Any, stored: Any, given: Any) -> None:
    validated = everything.validate({name: raw})
    assert validated[name] == stored
    assert type(validated[name]) is type(stored)
    assert validated == codec.roundtrip(validated)
    assert everything.validate(validated) == validated, "stored arguments are valid arguments"
    assert everything.call(context(), validated)[name] == given
    if isinstance(stored, Decimal):
        assert str(validated[name]) == str(stored)


def test_defaults_are_part_of_what_is_stored() -> None:
    validated = everything.validate({})
    assert validated["amount"] == Decimal("0.00")
    assert validated["size"] == "l"
    assert validated["lines"] is None
    assert len(validated) == 16


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ([], ""),
        ("{}", ""),
        (None, ""),
        ({"unknown": 1}, "unknown"),
        ({"p0": 1}, "p0"),
        ({"lines": [{"sku": "x", "colour": "red"}]}, "lines.0.colour"),
        ({"lines": [{"sku": 5}]}, "lines.0.sku"),
        ({"box": {"width": 1, "depth": 2}}, "box.depth"),
        ({"number": "many"}, "number"),
        ({"number": 1.5}, "number"),
        ({"ratio": math.nan}, "ratio"),
        ({"ratio": "NaN"}, "ratio"),
        ({"ratio": math.inf}, "ratio"),
        ({"anything": {"x": [math.nan]}}, "anything.x.0"),
        ({"anything": {"x": "a\ud83d"}}, "anything.x"),
        ({"anything": {"\udc00": 1}}, "anything"),
        ({"anything": {1: 2}}, "anything"),
        ({"anything": object()}, "anything"),
        ({"anything": b"x"}, "anything"),
        ({"anything": Decimal("1e999999999")}, "anything"),
        ({"amount": "1e999999999"}, "amount"),
        ({"amount": "1e-999999999"}, "amount"),
        ({"amount": "Infinity"}, "amount"),
        ({"amount": Decimal("sNaN")}, "amount"),
        ({"size": "m"}, "size"),
        ({"word": "c"}, "word"),
        ({"day": "tomorrow"}, "day"),
    ],
)
def test_invalid_input_names_the_place(raw: Any, path: str) -> None:
    with pytest.raises(InvalidToolInput) as caught:
        everything.validate(raw)
    assert path in [error["path"] for error in caught.value.details["errors"]]
    assert (path or "arguments") in str(caught.value)
    assert caught.value.code == "invalid_input"


def test_bottomless_input_is_refused() -> None:
    raw: dict[str, Any] = {}
    raw["anything"] = inner = []
    for _ in range(5000):
        inner.append([])
        inner = inner[0]
    with pytest.raises(InvalidToolInput, match="deep"):
        everything.validate(raw)


def test_secret_types_are_refused_rather_than_stored_masked() -> None:
    @tool
    def log_in(password: SecretStr) -> None: ...

    with pytest.raises(InvalidToolInput, match="redact"):
        log_in.validate({"password": "x"})


SCHEMA = {
    "type": "object",
    "properties": {
        "order-number": {"type": "string", "pattern": "^[0-9]+$"},
        "limit": {"type": "integer", "default": 10, "maximum": 50},
        "since": {"type": "string", "format": "date"},
        "where": {"type": "object", "properties": {"open": {"type": "boolean", "default": True}}},
        "either": {"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]},
        "free": {"type": "object"},
    },
    "required": ["order-number"],
}


@tool(input_schema=SCHEMA)
def written(ctx: ToolContext, /, **arguments: Any) -> Any:
    """Take what the schema says."""
    return {"call": ctx.tool_call_id, **arguments}


def test_written_schema_fills_in_defaults_and_reaches_the_handler() -> None:
    validated = written.validate({"order-number": "1", "where": {}, "free": {"x": Decimal("12.50")}})
    assert validated == {"order-number": "1", "limit": 10, "where": {"open": True}, "free": {"x": 12.5}}
    assert written.call(context(), validated) == {"call": "c1", **validated}


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"order-number": "x"},
        {"order-number": "1", "limit": 51},
        {"order-number": "1", "unknown": 1},
        {"order-number": "1", "where": {"unknown": 1}},
        {"order-number": "1", "since": "yesterday"},
        {"order-number": "1", "limit": Decimal("1e500")},
    ],
)
def test_written_schema_refuses(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolInput):
        written.validate(raw)


def test_schema_that_says_so_takes_other_keys() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}
    free: Tool = tool(input_schema=schema)(written.handler)
    assert free.validate({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidToolInput):
        free.validate({"a": "x"})


def test_preview_gets_the_handlers_types() -> None:
    def preview(ctx: ToolContext, amount: Decimal, size: Size) -> str:
        return f"{amount:.3f} {size.name} for {ctx.tool_call_id}"

    @tool(kind="action", preview=preview)
    def pay(amount: Decimal, size: Size) -> None: ...

    validated = pay.validate({"amount": "2", "size": "l"})
    assert pay.render_preview(context(), validated) == "2.000 LARGE for c1"
    assert everything.render_preview(context(), {}) == ""
