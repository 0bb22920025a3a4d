"""Servers that fail: what is asked again, what is not, and what may be said about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import ModelFailed
from agora_agent.providers.base import ModelRequest, ModelTurn
from agora_agent.providers.openai import OpenAIProvider
from agora_agent.testing.server import FakeOpenAI
from agora_agent.testing.turns import drop, end, finish, gate, http_error, raw, text, tool_call
from tests.providers.conftest import HELLO, Sink

Ask = Callable[..., ModelTurn]
GOOD = (text("hi"), finish())
OVERLOADED = {"error": {"code": 502, "message": "overloaded"}, "choices": []}


@pytest.mark.parametrize(
    "trouble",
    [
        http_error(429),
        http_error(500),
        http_error(503, b"<html>busy</html>", content_type="text/html"),
        OVERLOADED,
        {"error": {"code": "503", "message": "x"}},
        {"error": {"type": "server_error", "code": None, "message": "x"}},
        {"error": "upstream went away"},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]},
        raw(b'event: error\ndata: {"message": "overloaded"}\n\n'),
        raw(b"data: {not json\n\n"),
        drop(),
        end(),
    ],
)
def test_trouble_before_the_first_token_is_asked_again(
    fake_openai: FakeOpenAI, ask: Ask, sink: Sink, trouble: Any
) -> None:
    fake_openai.turn(trouble).turn(trouble).turn(*GOOD)
    assert ask().text == "hi"
    assert sink.deltas == ["hi"]
    assert len(fake_openai.requests) == 3


def test_three_attempts_and_no_more(fake_openai: FakeOpenAI, ask: Ask) -> None:
    for _ in range(4):
        fake_openai.turn(http_error(502))
    with pytest.raises(ModelFailed, match="502") as caught:
        ask()
    assert len(fake_openai.requests) == 3
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "trouble",
    [
        http_error(400),
        http_error(401),
        http_error(403),
        http_error(404),
        http_error(422),
        http_error(429, {"error": {"code": "insufficient_quota", "message": "pay"}}),
        {"error": {"code": 400, "message": "x"}},
        {"error": {"code": "context_length_exceeded", "type": "invalid_request_error", "message": "x"}},
    ],
)
def test_what_cannot_get_better_is_not_asked_again(fake_openai: FakeOpenAI, ask: Ask, trouble: Any) -> None:
    fake_openai.turn(trouble).turn(*GOOD)
    with pytest.raises(ModelFailed) as caught:
        ask()
    assert not caught.value.retryable
    assert len(fake_openai.requests) == 1


@pytest.mark.parametrize("trouble", [OVERLOADED, drop(), end(), raw(b"data: {\n\n")])
@pytest.mark.parametrize("begun", [text("Hel"), tool_call(0, "c1", "send_mail", '{"to"')])
def test_trouble_after_the_first_token_fails_the_step_as_a_whole(
    fake_openai: FakeOpenAI, ask: Ask, trouble: Any, begun: Any
) -> None:
    fake_openai.turn(begun, trouble).turn(*GOOD)
    with pytest.raises(ModelFailed) as caught:
        ask()
    assert caught.value.retryable
    assert len(fake_openai.requests) == 1


def test_refusal_after_the_first_token_is_final(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(text("Hel"), {"error": {"code": 400, "message": "x"}})
    with pytest.raises(ModelFailed) as caught:
        ask()
    assert not caught.value.retryable


def test_connection_lost_after_the_finish_reason_loses_nothing(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(*GOOD, drop())
    assert ask().text == "hi"


def test_retry_after_is_honoured(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(http_error(429, retry_after="0.4")).turn(*GOOD)
    before = time.monotonic()
    assert ask().text == "hi"
    assert time.monotonic() - before >= 0.4


def test_server_that_wants_a_long_pause_is_not_waited_for(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(http_error(429, retry_after="Fri, 01 Jan 2100 00:00:00 GMT")).turn(*GOOD)
    with pytest.raises(ModelFailed, match="429"):
        ask()


def test_server_that_is_not_there(sink: Sink) -> None:
    with FakeOpenAI() as gone:
        address = gone.base_url
    provider = OpenAIProvider(base_url=address, backoff_seconds=0.01)
    with pytest.raises(ModelFailed, match="cannot be reached"):
        provider.run_turn(ModelRequest("m", "", HELLO), sink, AbortSignal())


def test_answer_that_takes_too_long(fake_openai: FakeOpenAI, ask: Ask, settings: Any) -> None:
    settings.AGORA_AGENT = {"MODEL_TIMEOUT_SECONDS": 0.3}
    fake_openai.turn(text("a"), gate())
    with pytest.raises(ModelFailed, match=r"longer than 0\.3 seconds") as caught:
        ask()
    assert caught.value.retryable


def test_provider_without_a_key_says_what_to_set(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelFailed, match="OPENAI_API_KEY") as caught:
        OpenAIProvider().run_turn(ModelRequest("m", "", HELLO), sink, AbortSignal())
    assert not caught.value.retryable


def test_settings_name_server_and_key(fake_openai: FakeOpenAI, sink: Sink, settings: Any) -> None:
    settings.AGORA_AGENT = {"OPENAI_BASE_URL": fake_openai.base_url, "OPENAI_API_KEY": "sk-from-settings"}
    fake_openai.turn(*GOOD)
    OpenAIProvider().run_turn(ModelRequest("m", "", HELLO), sink, AbortSignal())
    assert fake_openai.headers[0]["authorization"] == "Bearer sk-from-settings"


def test_what_the_server_said_goes_to_the_log_without_keys_and_no_further(
    fake_openai: FakeOpenAI, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"error": {"message": "Incorrect API key: sk-test-0123456789, see org-secret; Bearer abcdef123"}}
    fake_openai.turn(http_error(401, body))
    with caplog.at_level(logging.WARNING, "agora_agent.providers"), pytest.raises(ModelFailed) as caught:
        ask()
    assert "org-secret" not in f"{caught.value} {caught.value.details}"
    [record] = caplog.records
    assert "org-secret" in record.detail  # type: ignore[attr-defined]
    assert "0123456789" not in record.detail  # type: ignore[attr-defined]
    assert "abcdef123" not in record.detail  # type: ignore[attr-defined]
    assert "org-secret" not in record.getMessage()
