"""How the turn asks a model, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agora_agent.abort import AbortSignal


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a model is told about it."""

    name: str
    description: str
    schema: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class ModelRequest:
    """One question to a model: the conversation so far and what it may call.

    ``messages`` are in a neutral form, each tool message directly after the assistant message that made its
    call:

    - ``{"role": "user", "content": text}``
    - ``{"role": "assistant", "content": text, "tool_calls": [{"id", "name", "input": dict}]}``
    - ``{"role": "tool", "id", "name", "content": text, "status":
      "executed|failed|rejected|expired|cancelled|interrupted"}``
    """

    model: str
    system: str
    messages: list[dict[str, Any]] = field(hash=False)
    tools: list[ToolSpec] = field(default_factory=list, hash=False)
    run_id: str = ""
    step: int = 0


@dataclass(frozen=True)
class RequestedCall:
    """A tool call as the model wrote it."""

    #: The provider's own id, or "": it may be empty, repeated or of any form.
    id: str
    name: str
    #: Parsed JSON, a dict where the model kept to the rules. Numbers that no float holds exactly as they were
    #: written (12.50, 0.1 with thirty digits) are Decimals.
    arguments: Any = field(hash=False)
    #: Why the arguments cannot be used, in words for the model; ``None`` if they can.
    error: str | None = None


@dataclass(frozen=True)
class TokenUsage:
    """Tokens as the provider counted them; ``None`` where it did not say."""

    input: int | None
    output: int | None
    #: Of the input, read from the provider's cache.
    cache_read: int | None = None
    #: Of the output, spent on reasoning.
    reasoning: int | None = None


@dataclass(frozen=True)
class ModelTurn:
    """A model's whole answer."""

    text: str
    calls: list[RequestedCall] = field(hash=False)
    #: "stop", "tool_calls", "length", "content_filter" or the provider's own word.
    finish_reason: str
    usage: TokenUsage | None
    #: The model that answered, by its own account.
    model: str


class TextSink(Protocol):
    """Gets a model's words as they come."""

    def text(self, delta: str) -> None:
        """More of the answer."""

    def reasoning(self, delta: str) -> None:
        """More of what the model thinks before it answers."""


@runtime_checkable
class ModelProvider(Protocol):
    """Calls a model. Used from many threads at once."""

    name: str
    #: True if it needs no network: the demo says so.
    offline: bool

    def run_turn(self, request: ModelRequest, sink: TextSink, abort: AbortSignal) -> ModelTurn:
        """Ask the model and hand its words to ``sink``, which is called in the calling thread.

        Raises:
            RunCancelled: ``abort`` fired.
            ModelFailed: no answer that could be used; ``retryable`` says whether asking again may help.
        """
        ...
