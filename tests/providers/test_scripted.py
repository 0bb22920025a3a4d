"""The offline model: a pure function of the conversation that understands a shop's back office."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import ModelNoOutput, RunCancelled
from agora_agent.providers import scripted
from agora_agent.providers.base import ModelProvider, ModelRequest, ModelTurn, ToolSpec
from agora_agent.providers.openai import OpenAIProvider
from agora_agent.providers.shop import shop_script
from agora_agent.testing import FakeOpenAI, Reply, ScriptedModel
from agora_agent.testing.server import scripted as over_http
from agora_agent.turn.history import EXPIRED, rejection_text
from tests.providers.conftest import Sink


def spec(name: str, *properties: str) -> ToolSpec:
    return ToolSpec(
        name, "", {"type": "object", "properties": {key: {"type": "string"} for key in properties}}
    )


SHOP = [
    spec("find_order", "number"),
    spec("list_orders", "status"),
    spec("refund_order", "number", "amount", "reason"),
    spec("send_note", "number", "text"),
    spec("logistics", "task"),
]
LOGISTICS = [spec("track_parcel", "number"), spec("reroute_parcel", "number", "address")]
ORDER = {
    "number": "1001",
    "customer": "Ann",
    "status": "paid",
    "total": "40.00",
    "refundable": "30.00",
    "items": [],
}

Outcome = tuple[str, Any]


def converse(
    said: str, tools: list[ToolSpec], *outcomes: Outcome, model: ModelProvider | None = None
) -> tuple[list[list[tuple[str, Any]]], str]:
    """The calls of each step and the last words, if each step's calls come out as the outcomes say."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": said}]
    steps: list[list[tuple[str, Any]]] = []
    for status, content in [*outcomes, ("failed", "one step too many")]:
        turn = answer(messages, tools, model)
        if not turn.calls:
            return steps, turn.text
        steps.append([(call.name, call.arguments) for call in turn.calls])
        calls = [{"id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls]
        messages.append({"role": "assistant", "content": turn.text, "tool_calls": calls})
        text = content if isinstance(content, str) else json.dumps(content)
        messages.extend(
            {"role": "tool", "id": call.id, "name": call.name, "content": text, "status": status}
            for call in turn.calls
        )
    raise AssertionError(f"no end: {steps}")


def answer(
    messages: list[dict[str, Any]], tools: list[ToolSpec], model: ModelProvider | None = None
) -> ModelTurn:
    request = ModelRequest("demo", "sys", messages, tools)
    return (model or ScriptedModel()).run_turn(request, Sink(), AbortSignal())


FOUND: Outcome = ("executed", ORDER)
DONE: Outcome = ("executed", {"ok": True})


def test_refund_without_an_amount_looks_up_what_is_left() -> None:
    steps, words = converse("refund 1001", SHOP, FOUND, DONE)
    assert steps == [
        [("find_order", {"number": "1001"})],
        [("refund_order", {"number": "1001", "amount": "30.00", "reason": "asked for in the chat"})],
    ]
    assert words == "Done: 30.00 was refunded for order 1001."


@pytest.mark.parametrize(
    ("said", "number", "amount", "reason"),
    [
        ("refund 12.50 for order 1001 because broken", "1001", "12.50", "broken"),
        ("Please refund 12,50 for 1001 because it arrived broken.", "1001", "12.50", "it arrived broken"),
        ("refund 20 on 1001", "1001", "20", "asked for in the chat"),
        ("Refund order 7", "7", "30.00", "asked for in the chat"),
        ("refund €5 for #12", "12", "5", "asked for in the chat"),
        ("refund 1500.00 for order 1001", "1001", "1500.00", "asked for in the chat"),
    ],
)
def test_refund_is_understood(said: str, number: str, amount: str, reason: str) -> None:
    steps, _ = converse(said, SHOP, FOUND, DONE)
    assert steps[1] == [("refund_order", {"number": number, "amount": amount, "reason": reason})]


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (
            "rejected",
            rejection_text("too much"),
            "A person declined the refund of 30.00 for order 1001: too much.",
        ),
        ("rejected", rejection_text(""), "A person declined the refund of 30.00 for order 1001."),
        ("expired", EXPIRED, "Nobody decided about the refund of 30.00 for order 1001 in time."),
        ("failed", "the bank is closed", "the refund of 30.00 for order 1001 failed (the bank is closed)"),
        ("interrupted", "?", "Nobody knows whether the refund of 30.00 for order 1001 happened"),
        ("cancelled", "?", "The refund of 30.00 for order 1001 was cancelled"),
    ],
)
def test_what_became_of_a_refund_is_told_honestly_and_not_tried_again(
    status: str, content: str, words: str
) -> None:
    steps, said = converse("refund 1001", SHOP, FOUND, (status, content))
    assert words in said
    assert "Done" not in said
    assert len(steps) == 2


def test_amount_that_a_person_changed_is_the_one_that_is_told() -> None:
    _, words = converse("refund 1001", SHOP, FOUND, ("executed", {"amount": "10.00"}))
    assert words == "Done: 10.00 was refunded for order 1001."


@pytest.mark.parametrize(
    "outcomes",
    [
        [FOUND, DONE],
        [FOUND, ("rejected", rejection_text("too much"))],
        [("failed", "no such order")],
        [FOUND, ("expired", EXPIRED)],
    ],
)
def test_the_same_is_said_over_http(
    fake_openai: FakeOpenAI, provider: OpenAIProvider, outcomes: list[Outcome]
) -> None:
    fake_openai.script = over_http(shop_script)
    there = converse("refund 12.50 for order 1001", SHOP, *outcomes, model=provider)
    assert there == converse("refund 12.50 for order 1001", SHOP, *outcomes)


def test_nothing_left_to_refund() -> None:
    steps, words = converse("refund 1001", SHOP, ("executed", {**ORDER, "refundable": "0.00"}))
    assert (len(steps), words) == (1, "Nothing is left to refund on order 1001.")


def test_order_that_cannot_be_found_is_not_refunded() -> None:
    steps, words = converse("refund 1001", SHOP, ("failed", "no such order"))
    assert len(steps) == 1
    assert "no such order" in words


def test_open_orders() -> None:
    rows = [
        {"number": "1", "customer": "Ann", "total": "3.00"},
        {"number": "2", "customer": "Bo", "total": "4.00"},
    ]
    steps, words = converse("list open orders", SHOP, ("executed", rows))
    assert steps == [[("list_orders", {"status": "open"})]]
    assert words == "2 orders: 1 (Ann, 3.00); 2 (Bo, 4.00)."


def test_two_orders_are_looked_up_in_one_step() -> None:
    steps, words = converse("compare 1001 and 1002", SHOP, FOUND)
    assert steps == [[("find_order", {"number": "1001"}), ("find_order", {"number": "1002"})]]
    assert "Order 1001 of Ann is paid: total 40.00, 30.00 of it refundable." in words


def test_note() -> None:
    steps, words = converse("note on 1001: call back at 5", SHOP, DONE)
    assert steps == [[("send_note", {"number": "1001", "text": "call back at 5"})]]
    assert words == "The note on order 1001 is sent."


def test_parcel_goes_to_logistics_and_logistics_tracks_it() -> None:
    steps, words = converse("where is parcel P-77?", SHOP, ("executed", "Parcel P-77: in Lyon."))
    assert steps == [[("logistics", {"task": "where is parcel P-77?"})]]
    assert words == "Logistics says: Parcel P-77: in Lyon."
    steps, words = converse("where is parcel P-77?", LOGISTICS, ("executed", {"place": "Lyon"}))
    assert steps == [[("track_parcel", {"number": "P-77"})]]
    assert words == "Parcel P-77: place Lyon."


def test_parcel_is_rerouted_by_logistics() -> None:
    said = "reroute parcel P-77 to 5 High Street"
    assert converse(said, SHOP, DONE)[0] == [[("logistics", {"task": said})]]
    steps, words = converse(said, LOGISTICS, DONE)
    assert steps == [[("reroute_parcel", {"number": "P-77", "address": "5 High Street"})]]
    assert words == "Parcel P-77 now goes to 5 High Street."


@pytest.mark.parametrize(
    "said", ["refund 1001", "list open orders", "where is P-77", "note on 1001: x", "compare 1 and 2"]
)
def test_only_offered_tools_are_called(said: str) -> None:
    assert converse(said, [])[0] == []


@pytest.mark.parametrize("said", ["hello", "", "what can you do?", "refund"])
def test_anything_else_says_what_can_be_asked(said: str) -> None:
    steps, words = converse(said, SHOP)
    assert steps == []
    assert "refund 1001" in words


def test_same_conversation_same_answer_and_ids_are_new_in_each_turn() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "compare 1001 and 1002"}]
    seen: list[str] = []
    for _ in range(5):
        turn = answer(messages, SHOP)
        assert turn == answer(messages, SHOP)
        seen += [call.id for call in turn.calls]
        calls = [{"id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages.append({"role": "user", "content": "compare 1001 and 1002"})
        if len(messages) > 6:  # a window over the history
            del messages[:2]
    assert len(set(seen)) == len(seen) == 10


def test_words_are_streamed_and_usage_is_counted() -> None:
    sink = Sink()
    model = ScriptedModel(lambda request: Reply("one two\nthree ", reasoning="hm hm"))
    turn = model.run_turn(ModelRequest("m", "a b", [{"role": "user", "content": "c"}]), sink, AbortSignal())
    assert sink.deltas == ["one ", "two\n", "three "]
    assert sink.thoughts == ["hm ", "hm"]
    assert turn.text == "one two\nthree "
    assert turn.usage is not None
    assert (turn.usage.input, turn.usage.output) == (3, 5)


def test_abort_between_two_words() -> None:
    abort, sink = AbortSignal(), Sink()
    model = scripted.ScriptedModel(lambda request: Reply("one two"), delay_seconds=30)
    threading.Thread(target=lambda: sink.first.wait(5) and abort.abort("cancelled")).start()
    before = time.monotonic()
    with pytest.raises(RunCancelled):
        model.run_turn(ModelRequest("m", "", []), sink, abort)
    assert time.monotonic() - before < 1
    assert sink.deltas == ["one "]


def test_script_that_says_nothing() -> None:
    with pytest.raises(ModelNoOutput):
        ScriptedModel(lambda request: Reply()).run_turn(ModelRequest("m", "", []), Sink(), AbortSignal())


def test_people_see_tokens_and_tests_do_not_wait() -> None:
    assert scripted.ScriptedModel()._delay == 0.02
    assert ScriptedModel()._delay == 0
    assert isinstance(ScriptedModel(), ModelProvider)
    assert ScriptedModel().offline is True
