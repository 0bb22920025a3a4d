"""A model without a network: a pure function of the conversation, streamed word by word."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import ModelNoOutput, RunCancelled
from agora_agent.providers.base import ModelRequest, ModelTurn, RequestedCall, TextSink, TokenUsage

#: Seconds between two words, so that people see tokens arrive.
WORD_DELAY_SECONDS = 0.02

_WORDS = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True)
class Reply:
    """What a script answers: text, calls as (name, arguments), or both."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    reasoning: str = ""
    finish_reason: str = ""


Script = Callable[[ModelRequest], Reply]


class ScriptedModel:
    """The offline demo's model, and the model of tests.

    Args:
        script: what to answer to a request. It must depend on nothing else, so that a replayed or repeated step
            gets the same answer. Without it, :func:`agora_agent.providers.shop.shop_script`.
        delay_seconds: pause between two words.
    """

    name = "scripted"
    offline = True

    def __init__(self, script: Script | None = None, *, delay_seconds: float = WORD_DELAY_SECONDS) -> None:
        self._script = script
        self._delay = delay_seconds

    def reply(self, request: ModelRequest) -> Reply:
        """What it answers. A subclass may override this instead of giving a script."""
        if self._script is not None:
            return self._script(request)
        from agora_agent.providers.shop import shop_script

        return shop_script(request)

    def run_turn(self, request: ModelRequest, sink: TextSink, abort: AbortSignal) -> ModelTurn:
        """The script's reply, its text in words."""
        if abort.aborted:
            raise RunCancelled(abort.reason)
        reply = self.reply(request)
        if not reply.text.strip() and not reply.calls:
            raise ModelNoOutput
        self._speak(reply.reasoning, sink.reasoning, abort)
        self._speak(reply.text, sink.text, abort)
        return ModelTurn(
            text=reply.text,
            calls=self._calls(request, reply),
            finish_reason=reply.finish_reason or ("tool_calls" if reply.calls else "stop"),
            usage=_usage(request, reply),
            model=f"scripted:{request.model}" if request.model else "scripted",
        )

    def _speak(self, text: str, tell: Callable[[str], None], abort: AbortSignal) -> None:
        for delta in _WORDS.findall(text):
            tell(delta)
            if abort.wait(self._delay) if self._delay else abort.aborted:
                raise RunCancelled(abort.reason)

    def _calls(self, request: ModelRequest, reply: Reply) -> list[RequestedCall]:
        used = {call["id"] for message in request.messages for call in message.get("tool_calls") or ()}
        turn = 1 + sum(message["role"] == "assistant" for message in request.messages)
        # A window over the history may hide earlier turns, and with them the count.
        while any(f"call-{turn}-{number}" in used for number in range(1, len(reply.calls) + 1)):
            turn += 1
        return [
            RequestedCall(f"call-{turn}-{number}", name, arguments)
            for number, (name, arguments) in enumerate(reply.calls, 1)
        ]


def _usage(request: ModelRequest, reply: Reply) -> TokenUsage:
    read = [request.system, *(str(message.get("content") or "") for message in request.messages)]
    written = [reply.text, reply.reasoning, *(f"{name} {arguments}" for name, arguments in reply.calls)]
    return TokenUsage(input=_count(read), output=_count(written))


def _count(texts: Sequence[str]) -> int:
    return sum(len(text.split()) for text in texts)
