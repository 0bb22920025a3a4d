"""The model of the clerk's agents: a test says what it answers, and what it was asked is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import RunCancelled
from agora_agent.providers.base import ModelRequest, ModelTurn, TextSink
from agora_agent.providers.scripted import Reply, ScriptedModel

Answer = Reply | str | Callable[[ModelRequest], Reply]


class ClerkModel(ScriptedModel):
    """Answers by how many steps the run has had; checks that every call in a prompt has its one result."""

    def __init__(self) -> None:
        super().__init__(delay_seconds=0)
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[ModelRequest] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.holds = False

    def reset(self) -> None:
        """Forget the script of the last test."""
        self.answers, self.requests, self.holds = {}, [], False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def script(self, *answers: Answer, agent: str = "desk") -> None:
        """What the agent answers, step by step."""
        self.answers[agent] = list(answers)

    def reply(self, request: ModelRequest) -> Reply:
        self.requests.append(request)
        _check_pairs(request.messages)
        names = {tool.name for tool in request.tools}
        agent = "desk" if "wipe" in names or "read_stock" not in names else "helper"
        answers = self.answers[agent]
        answer = answers[min(request.step, len(answers) - 1)]
        if isinstance(answer, str):
            return Reply(answer)
        return answer(request) if callable(answer) else answer

    def run_turn(self, request: ModelRequest, sink: TextSink, abort: AbortSignal) -> ModelTurn:
        if self.holds:
            self.begun.set()
            sink.text("thinking ")
            while not self.go_on.wait(0.02):
                if abort.aborted:
                    raise RunCancelled(abort.reason)
        return super().run_turn(request, sink, abort)


def _check_pairs(messages: list[dict[str, Any]]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting, f"a result without its call: {message}"
            assert message["id"] == waiting.pop(0)
            assert message["content"]
        else:
            assert not waiting, f"calls without results: {waiting}"
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting, f"calls without results: {waiting}"


CLERK = ClerkModel()
