"""What servers that speak Chat Completions send, each in its own way."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from agora_agent.exceptions import ModelFailed, ModelNoOutput
from agora_agent.providers.base import ModelTurn, RequestedCall, TokenUsage
from agora_agent.testing.server import FakeOpenAI
from agora_agent.testing.turns import finish, raw, text, tool_call, usage
from tests.providers.conftest import Sink

Ask = Callable[..., ModelTurn]


def arguments(turn: ModelTurn) -> list[Any]:
    assert [call.error for call in turn.calls] == [None] * len(turn.calls)
    return [call.arguments for call in turn.calls]


def call_chunk(**call: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [call]}}]}


def test_text_and_usage(fake_openai: FakeOpenAI, ask: Ask, sink: Sink) -> None:
    fake_openai.turn(text("hel"), text("lo"), finish("stop"), usage(3, 1))
    turn = ask()
    assert turn == ModelTurn("hello", [], "stop", TokenUsage(3, 1), "fake-model")
    assert sink.deltas == ["hel", "lo"]


def test_request_carries_the_conversation(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(text("ok"), finish())
    call = {"id": "c1", "name": "söme tool!", "input": {"n": Decimal("12.50"), "big": 2**70}}
    result = {"role": "tool", "id": "c1", "name": "x", "content": "no such order", "status": "failed"}
    ask(
        [
            {"role": "user", "content": "a\x00b\ud83d"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            result,
        ]
    )
    [body] = fake_openai.requests
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["tools"][0]["function"]["name"] == "send_mail"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\u2400b\ufffd"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {
                        "name": "s_me_tool_",
                        "arguments": '{"n": "12.50", "big": 1180591620717411303424}',
                    },
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "[failed] no such order"},
    ]


def test_prompt_with_an_unanswered_call_is_refused_by_the_server(fake_openai: FakeOpenAI, ask: Ask) -> None:
    call = {"id": "c1", "name": "send_mail", "input": {}}
    with pytest.raises(ModelFailed) as caught:
        ask([*[{"role": "user", "content": "x"}], {"role": "assistant", "content": "", "tool_calls": [call]}])
    assert not caught.value.retryable
    assert fake_openai.violations == ["the call 'c1' at the end has no result"]
    fake_openai.violations.clear()


def test_ids_are_left_as_they_came(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        tool_call(0, "x", "a", "{}"), tool_call(1, "x", "b", "{}"), tool_call(2, "", "c", "{}"), finish()
    )
    assert [(call.id, call.name) for call in ask().calls] == [("x", "a"), ("x", "b"), ("", "c")]


@pytest.mark.parametrize("same_name", [True, False])
def test_constant_index_with_new_ids_is_two_calls(fake_openai: FakeOpenAI, ask: Ask, same_name: bool) -> None:
    other = "read_stock" if same_name else "send_mail"
    fake_openai.turn(
        tool_call(0, "a1", "read_stock", '{"sku"'),
        tool_call(0, None, None, ':"x"}'),
        tool_call(0, "a2", other, '{"sku":"y"}'),
        finish("tool_calls"),
    )
    turn = ask()
    assert arguments(turn) == [{"sku": "x"}, {"sku": "y"}]
    assert [call.name for call in turn.calls] == ["read_stock", other]


def test_constant_index_and_constant_id_is_two_calls(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        tool_call(0, "x", "send_mail", '{"to":"a"}'), tool_call(0, "x", "send_mail", '{"to":"b"}'), finish()
    )
    assert arguments(ask()) == [{"to": "a"}, {"to": "b"}]


def test_constant_index_without_ids_is_two_calls(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        tool_call(0, None, "send_mail", '{"to":"a"}'), tool_call(0, None, "send_mail", '{"to":"b"}'), finish()
    )
    assert arguments(ask()) == [{"to": "a"}, {"to": "b"}]


def test_interleaved_calls_are_told_apart_by_index(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        tool_call(0, "a", "send_mail", '{"to"'),
        tool_call(1, "b", "send_mail", '{"to"'),
        tool_call(0, None, None, ':"a"}'),
        tool_call(1, None, None, ':"b"}'),
        finish(),
    )
    assert arguments(ask()) == [{"to": "a"}, {"to": "b"}]


@pytest.mark.parametrize("index", [{}, {"index": None}])
def test_missing_index(fake_openai: FakeOpenAI, ask: Ask, index: dict[str, None]) -> None:
    fake_openai.turn(
        call_chunk(**index, id="a", function={"name": "read_stock", "arguments": '{"sku"'}),
        call_chunk(index=None, function={"arguments": ':"x"}'}),
        finish(),
    )
    turn = ask()
    assert [(call.id, call.arguments) for call in turn.calls] == [("a", {"sku": "x"})]


@pytest.mark.parametrize("text_of", ['{"to":"a"}', ""])
def test_two_whole_calls_without_index_and_id(fake_openai: FakeOpenAI, ask: Ask, text_of: str) -> None:
    call = {"function": {"name": "send_mail", "arguments": text_of}}
    fake_openai.turn({"choices": [{"delta": {"tool_calls": [call, call]}}]}, finish())
    assert len(ask().calls) == 2


def test_id_and_name_repeated_in_each_fragment(fake_openai: FakeOpenAI, ask: Ask) -> None:
    pieces = ["", '{"to"', ':"a"', "}", ""]
    fake_openai.turn(*(tool_call(0, "c1", "send_mail", piece) for piece in pieces), finish())
    assert arguments(ask()) == [{"to": "a"}]


def test_new_id_in_each_fragment_of_one_call(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        tool_call(0, "c1", "send_mail", '{"to"'),
        tool_call(0, "c2", None, ':"a"}'),
        tool_call(0, "c3", None, ""),
        finish(),
    )
    turn = ask()
    assert arguments(turn) == [{"to": "a"}]
    assert turn.calls[0].id == "c1"


def test_call_without_a_name_leaves_its_sibling_whole(fake_openai: FakeOpenAI, ask: Ask) -> None:
    nameless = call_chunk(index=0, id="c2", function={"name": None, "arguments": '{"to":"b"}'})
    fake_openai.turn(tool_call(0, "c1", "send_mail", '{"to":"a"}'), nameless, finish())
    assert [(call.name, call.arguments) for call in ask().calls] == [
        ("send_mail", {"to": "a"}),
        ("", {"to": "b"}),
    ]


@pytest.mark.parametrize("split", range(1, 24))
def test_arguments_split_anywhere(fake_openai: FakeOpenAI, ask: Ask, split: int) -> None:
    whole = '{"to": "\\ud83d\\ude00", "n": 1}'
    fake_openai.turn(
        tool_call(0, "c", "send_mail", whole[:split]), tool_call(0, None, None, whole[split:]), finish()
    )
    assert arguments(ask()) == [{"to": "😀", "n": 1}]


def test_surrogates_of_arguments_split_over_two_deltas(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        tool_call(0, "c", "send_mail", '{"to":"\ud83d'), tool_call(0, None, None, '\ude00"}'), finish()
    )
    assert arguments(ask()) == [{"to": "😀"}]


def test_arguments_as_an_object(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(tool_call(0, "c", "send_mail", {"to": ["a", {"b": 1}]}), finish("tool_calls"))
    assert arguments(ask()) == [{"to": ["a", {"b": 1}]}]


@pytest.mark.parametrize(
    "function", [{"arguments": ""}, {"arguments": "  "}, {"arguments": None}, {}, {"arguments": "null"}]
)
def test_no_arguments_are_an_empty_object(
    fake_openai: FakeOpenAI, ask: Ask, function: dict[str, Any]
) -> None:
    fake_openai.turn(
        call_chunk(index=0, id="c", function={"name": "read_stock", **function}), finish("tool_calls")
    )
    assert arguments(ask()) == [{}]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ('{"to": "a"', "arguments are not valid JSON"),
        ("to=a", "arguments are not valid JSON"),
        ('{"to": "a", "to": "b"}', 'duplicate key "to"'),
        ('{"x": [{"to": 1, "to": 1}]}', 'duplicate key "to"'),
        ('{"n": NaN}', "NaN is not a number in JSON"),
        ('{"n": -Infinity}', "-Infinity is not a number in JSON"),
        ('{"n": 1e999}', "a number is out of range"),
        ('{"n": 1e-999999999}', "a number is out of range"),
        ('{"to": "\\ud83d"}', "a text is not valid Unicode"),
        ('["a"]', "arguments are not a JSON object"),
        ('"{}"', "arguments are not a JSON object"),
        ("[" * 100_000, "arguments are not valid JSON"),
        ('{"n": ' + "9" * 5000 + "}", "arguments are not valid JSON"),
    ],
)
def test_unusable_arguments_say_why(fake_openai: FakeOpenAI, ask: Ask, written: str, why: str) -> None:
    fake_openai.turn(tool_call(0, "c", "send_mail", written), finish("tool_calls"))
    [call] = ask().calls
    assert call.arguments is None
    assert call.error == why


def test_duplicate_key_in_arguments_as_an_object(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        raw(
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":'
            b'{"name":"send_mail","arguments":{"to":"a","to":"b"}}}]}}]}\n\n'
        ),
        finish(),
    )
    [call] = ask().calls
    assert (call.arguments, call.error) == (None, 'duplicate key "to"')


def test_numbers_keep_all_their_digits(fake_openai: FakeOpenAI, ask: Ask) -> None:
    written = '{"a": 12.50, "b": 12.5, "c": 9007199254740993, "d": 0.1234567890123456789, "e": 1}'
    fake_openai.turn(tool_call(0, "c", "send_mail", written), finish())
    [found] = arguments(ask())
    assert found == {
        "a": Decimal("12.50"),
        "b": 12.5,
        "c": 9007199254740993,
        "d": Decimal("0.1234567890123456789"),
        "e": 1,
    }
    assert str(found["a"]) == "12.50"
    assert type(found["b"]) is float


@pytest.mark.parametrize(
    "fragments",
    [
        [tool_call(0, "c1", "send_mail", '{"to":"a"}'), tool_call(1, "c2", "send_mail", '{"to":"b')],
        [tool_call(0, "c1", "send_mail", '{"to":"a"}')],
    ],
)
def test_calls_of_an_answer_cut_by_the_token_limit_are_unusable(
    fake_openai: FakeOpenAI, ask: Ask, fragments: list[dict[str, Any]]
) -> None:
    fake_openai.turn(*fragments, finish("length"))
    turn = ask()
    assert turn.finish_reason == "length"
    assert {call.error for call in turn.calls} == {"cut by the token limit"}


def test_text_cut_by_the_token_limit_is_marked(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(text("once upon"), finish("length"))
    assert (turn := ask()).text == "once upon"
    assert turn.finish_reason == "length"


def test_filtered_answer_executes_nothing(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(tool_call(0, "c", "send_mail", "{}"), finish("content_filter"))
    assert [call.error for call in ask().calls] == ["stopped by the provider's content filter"]


@pytest.mark.parametrize(
    "preamble", [{"choices": [], "prompt_filter_results": []}, {"usage": None}, {"choices": None}]
)
def test_chunks_without_choices_and_null_deltas(
    fake_openai: FakeOpenAI, ask: Ask, sink: Sink, preamble: dict[str, Any]
) -> None:
    fake_openai.turn(
        preamble,
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}], "usage": None},
        text("hi"),
        {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]},
        usage(3, 1),
    )
    turn = ask()
    assert (turn.text, turn.finish_reason, turn.usage) == ("hi", "stop", TokenUsage(3, 1))
    assert sink.deltas == ["hi"]


@pytest.mark.parametrize(
    "junk",
    [
        b"data: null\n\n",
        b"data: [1]\n\n",
        b": ping\n\n",
        b"retry: 5\n\n",
        b'data: {"choices":[null]}\n\n',
        b"\xff\n",
    ],
)
def test_junk_between_chunks_is_passed_over(fake_openai: FakeOpenAI, ask: Ask, junk: bytes) -> None:
    fake_openai.turn(text("a"), raw(junk), text("b"), finish())
    assert ask().text == "ab"


def test_lines_end_at_cr_and_lf_only(fake_openai: FakeOpenAI, ask: Ask) -> None:
    chunk = '{"choices":[{"index":0,"delta":{"content":"a\u2028b\u0085c"},"finish_reason":"stop"}]}'
    fake_openai.turn(raw(f"event: message\r\ndata:{chunk}\r".encode()), raw(b"\n\r\ndata: [DONE]\r\n\r\n"))
    assert ask().text == "a\u2028b\u0085c"


def test_event_split_inside_a_character(fake_openai: FakeOpenAI, ask: Ask) -> None:
    chunk = 'data: {"choices":[{"delta":{"content":"é😀"},"finish_reason":"stop"}]}\n\n'.encode()
    cut = chunk.index("😀".encode()) + 2
    fake_openai.turn(raw(chunk[:cut]), raw(chunk[cut:]))
    assert ask().text == "é😀"


def test_emoji_split_over_two_deltas_is_joined_before_the_sink_sees_it(
    fake_openai: FakeOpenAI, ask: Ask, sink: Sink
) -> None:
    fake_openai.turn(text("a\ud83d"), text("\ude00b"), text("\udc00"), text("\ud83d"), finish())
    turn = ask()
    assert turn.text == "a😀b\ufffd\ufffd" == "".join(sink.deltas)
    assert sink.deltas[:2] == ["a", "😀b"]


def test_refusal_is_text(fake_openai: FakeOpenAI, ask: Ask, sink: Sink) -> None:
    fake_openai.turn({"choices": [{"index": 0, "delta": {"refusal": "I will not."}}]}, finish())
    assert ask().text == "I will not."
    assert sink.deltas == ["I will not."]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_to_its_own_channel(fake_openai: FakeOpenAI, ask: Ask, sink: Sink, name: str) -> None:
    fake_openai.turn({"choices": [{"index": 0, "delta": {name: "hm"}}]}, text("yes"), finish())
    assert ask().text == "yes"
    assert (sink.thoughts, sink.deltas) == (["hm"], ["yes"])


def test_content_in_parts(fake_openai: FakeOpenAI, ask: Ask) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    fake_openai.turn({"choices": [{"index": 0, "delta": {"content": parts}}]}, finish())
    assert ask().text == "ab"


def test_other_choices_are_not_mixed_in(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(text("a"), {"choices": [{"index": 1, "delta": {"content": "b"}}]}, finish())
    assert ask().text == "a"


def test_odd_names_are_kept(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(tool_call(0, "c", "sénd mail!.v2", "{}"), finish())
    assert ask().calls == [RequestedCall("c", "sénd mail!.v2", {})]


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_answer_of_nothing(fake_openai: FakeOpenAI, ask: Ask, content: str | None) -> None:
    fake_openai.turn({"choices": [{"index": 0, "delta": {"content": content}}]}, finish())
    with pytest.raises(ModelNoOutput):
        ask()


def test_running_totals_of_usage_are_not_added_up(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(
        text("a"), usage(10, 1), usage(10, 5), finish(), usage(10, 9), {"choices": [], "usage": None}
    )
    assert ask().usage == TokenUsage(10, 9)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": None, "completion_tokens": 5}, TokenUsage(None, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 0}, TokenUsage(10, 5)),
        ({"prompt_tokens": -1, "completion_tokens": "5"}, None),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            TokenUsage(10, 5, 4, 2),
        ),
    ],
)
def test_usage_that_is_missing_or_odd(
    fake_openai: FakeOpenAI, ask: Ask, given: Any, read: TokenUsage | None
) -> None:
    fake_openai.turn(text("a"), finish(), {"choices": [], "usage": given})
    assert ask().usage == read


def test_server_that_does_not_stream(fake_openai: FakeOpenAI, ask: Ask, sink: Sink) -> None:
    from agora_agent.testing.turns import http_error

    message = {"role": "assistant", "content": "hi", "tool_calls": None}
    whole = {
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1},
    }
    fake_openai.turn(http_error(200, whole))
    assert ask() == ModelTurn("hi", [], "stop", TokenUsage(1, None), "m")
    assert sink.deltas == ["hi"]
