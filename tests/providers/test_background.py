"""Aborting, many callers at once, slow sinks, forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import Fenced, ModelFailed, RunCancelled
from agora_agent.providers import background
from agora_agent.providers.base import ModelProvider, ModelRequest, ModelTurn
from agora_agent.providers.openai import OpenAIProvider
from agora_agent.testing.server import FakeOpenAI
from agora_agent.testing.turns import finish, gate, http_error, text
from tests.providers.conftest import HELLO, Sink

Ask = Callable[..., ModelTurn]


class Asking(threading.Thread):
    """Asks in a thread of its own and keeps how that ended, and when."""

    def __init__(self, ask: Callable[[], ModelTurn]) -> None:
        super().__init__()
        self.ask = ask
        self.answer: ModelTurn | None = None
        self.error: BaseException | None = None
        self.ended = 0.0

    def run(self) -> None:
        try:
            self.answer = self.ask()
        except BaseException as error:
            self.error = error
        self.ended = time.monotonic()


def test_provider_keeps_to_the_protocol() -> None:
    assert isinstance(OpenAIProvider(), ModelProvider)
    assert OpenAIProvider().offline is False


def test_abort_before_the_first_byte_ends_within_a_second(fake_openai: FakeOpenAI, ask: Ask) -> None:
    waiting, abort = gate(), AbortSignal()
    fake_openai.turn(waiting, text("late"), finish())
    asking = Asking(lambda: ask(abort=abort))
    asking.start()
    assert waiting.reached.wait(5)
    before = time.monotonic()
    abort.abort("cancelled")
    asking.join(5)
    assert isinstance(asking.error, RunCancelled)
    assert asking.ended - before < 1
    assert fake_openai.client_gone.wait(1), "the request goes on at the server"


def test_abort_in_the_middle_ends_within_a_second(fake_openai: FakeOpenAI, ask: Ask, sink: Sink) -> None:
    waiting, abort = gate(), AbortSignal()
    fake_openai.turn(text("one"), waiting, text("two"), finish())
    asking = Asking(lambda: ask(abort=abort))
    asking.start()
    assert sink.first.wait(5)
    assert waiting.reached.wait(5)
    before = time.monotonic()
    abort.abort("cancelled")
    asking.join(5)
    assert isinstance(asking.error, RunCancelled)
    assert asking.ended - before < 1
    assert fake_openai.client_gone.wait(1), "the request goes on at the server"
    assert sink.deltas == ["one"]


def test_abort_during_the_pause_before_another_attempt(fake_openai: FakeOpenAI, ask: Ask) -> None:
    abort = AbortSignal()
    fake_openai.turn(http_error(429, retry_after="30"))
    asking = Asking(lambda: ask(abort=abort))
    asking.start()
    while not fake_openai.requests:
        time.sleep(0.01)
    before = time.monotonic()
    abort.abort("cancelled")
    asking.join(5)
    assert isinstance(asking.error, RunCancelled)
    assert asking.ended - before < 1


def test_aborted_call_asks_nobody(fake_openai: FakeOpenAI, ask: Ask) -> None:
    abort = AbortSignal()
    abort.abort("cancelled")
    with pytest.raises(RunCancelled):
        ask(abort=abort)
    assert fake_openai.requests == []


def test_sink_is_called_in_the_calling_thread(fake_openai: FakeOpenAI, ask: Ask, sink: Sink) -> None:
    fake_openai.turn(text("a"), text("b"), finish())
    ask()
    assert sink.threads == {threading.get_ident()}


def test_what_the_sink_raises_ends_the_request(fake_openai: FakeOpenAI, provider: OpenAIProvider) -> None:
    class Fencing(Sink):
        def text(self, delta: str) -> None:
            raise Fenced("somebody else has it")

    fake_openai.turn(text("a"), gate(), finish())
    with pytest.raises(Fenced):
        provider.run_turn(ModelRequest("m", "", HELLO), Fencing(), AbortSignal())
    assert fake_openai.client_gone.wait(1)


def test_slow_sink_slows_the_reading_and_loses_nothing(
    fake_openai: FakeOpenAI, provider: OpenAIProvider
) -> None:
    class Slow(Sink):
        def text(self, delta: str) -> None:
            time.sleep(0.0005)
            super().text(delta)

    words = [f"{number} " for number in range(1000)]
    fake_openai.turn(*(text(word) for word in words), finish())
    slow = Slow()
    turn = provider.run_turn(ModelRequest("m", "", HELLO), slow, AbortSignal())
    assert slow.deltas == words
    assert turn.text == "".join(words)


def test_eight_threads_at_once(fake_openai: FakeOpenAI, provider: OpenAIProvider) -> None:
    meeting = gate()

    def answer(body: dict[str, Any]) -> list[Any]:
        said = body["messages"][-1]["content"]
        return [text("you said "), meeting, *(text(f"{said}.") for _ in range(50)), finish()]

    fake_openai.script = answer
    sinks = [Sink() for _ in range(8)]

    def ask(number: int) -> Callable[[], ModelTurn]:
        messages = [{"role": "user", "content": str(number)}]
        return lambda: provider.run_turn(ModelRequest("m", "", messages), sinks[number], AbortSignal())

    asking = [Asking(ask(number)) for number in range(8)]
    for thread in asking:
        thread.start()
    assert all(sink.first.wait(10) for sink in sinks), "they do not run side by side"
    meeting.open()
    for thread in asking:
        thread.join(10)
    assert [thread.answer and thread.answer.text for thread in asking] == [
        "you said " + f"{number}." * 50 for number in range(8)
    ]
    assert sum(thread.name == "agora-providers" for thread in threading.enumerate()) == 1


def test_stopping_the_process_is_no_cancel(fake_openai: FakeOpenAI, ask: Ask, sink: Sink) -> None:
    fake_openai.turn(text("a"), gate(), finish())
    asking = Asking(ask)
    asking.start()
    assert sink.first.wait(5)
    background.shutdown()
    asking.join(5)
    assert isinstance(asking.error, ModelFailed)
    assert asking.error.retryable


def test_loop_starts_again_after_a_shutdown(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(text("a"), finish()).turn(text("b"), finish())
    assert ask().text == "a"
    background.shutdown()
    assert ask().text == "b"


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_its_own_loop_and_client(fake_openai: FakeOpenAI, ask: Ask) -> None:
    fake_openai.turn(text("parent"), finish()).turn(text("child"), finish()).turn(text("again"), finish())
    assert ask().text == "parent"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, ask().text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        assert answer.read() == b"child"
    os.waitpid(child, 0)
    assert ask().text == "again"
