"""A provider that asks a real HTTP server, and a sink that remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agora_agent.abort import AbortSignal
from agora_agent.providers.base import ModelRequest, ModelTurn, ToolSpec
from agora_agent.providers.openai import OpenAIProvider
from agora_agent.testing.plugin import fake_openai, scripted_model  # noqa: F401
from agora_agent.testing.server import FakeOpenAI

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
SPEC = ToolSpec("send_mail", "Send a mail.", {"type": "object", "properties": {"to": {"type": "string"}}})


class Sink:
    """Keeps what it is told, and by which thread."""

    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.thoughts: list[str] = []
        self.threads: set[int] = set()
        self.first = threading.Event()

    def text(self, delta: str) -> None:
        self.deltas.append(delta)
        self.threads.add(threading.get_ident())
        self.first.set()

    def reasoning(self, delta: str) -> None:
        self.thoughts.append(delta)
        self.first.set()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def provider(fake_openai: FakeOpenAI) -> OpenAIProvider:  # noqa: F811
    return OpenAIProvider(base_url=fake_openai.base_url, api_key="sk-test-0123456789", backoff_seconds=0.01)


@pytest.fixture
def ask(provider: OpenAIProvider, sink: Sink) -> Callable[..., ModelTurn]:
    """Ask the server that the test has told what to say."""

    def run(messages: list[dict[str, Any]] = HELLO, abort: AbortSignal | None = None) -> ModelTurn:
        request = ModelRequest("test-model", "Be brief.", messages, [SPEC], "run-1", 0)
        return provider.run_turn(request, sink, abort or AbortSignal())

    return run
