"""Puts the chunks of one streamed answer together: strict where it matters, tolerant where servers differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from agora_agent.exceptions import ModelNoOutput
from agora_agent.providers.base import ModelTurn, TokenUsage
from agora_agent.providers.calls import CallAssembler
from agora_agent.providers.jsontext import Joiner


class Delta(NamedTuple):
    """A piece of text for the sink."""

    kind: str  # "text" or "reasoning"
    text: str


class StreamError(Exception):
    """The server says inside its 200 answer that something went wrong. ``detail`` is for the log only."""

    def __init__(self, detail: str, *, retryable: bool, status: int | None = None) -> None:
        super().__init__(detail)
        self.retryable = retryable
        self.status = status


_HOPELESS = (
    "invalid",
    "authentication",
    "permission",
    "not_found",
    "insufficient_quota",
    "context_length",
    "unsupported",
)
_PASSING_STATUS = (408, 409, 425, 429)


def is_passing(status: int | None, words: str = "") -> bool:
    """True if asking again may help, by the status and the error's own code and type."""
    if "insufficient_quota" in words:
        return False
    if status is not None:
        return status in _PASSING_STATUS or status >= 500
    return not any(word in words for word in _HOPELESS)


class AnswerAssembler:
    """One answer, from its first chunk to its last."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls = CallAssembler()
        self._joiners = {"text": Joiner(), "reasoning": Joiner()}
        self._usage: TokenUsage | None = None
        self._model = ""
        self._thought = False
        self.finish_reason = ""

    @property
    def has_begun(self) -> bool:
        """True once anything of the answer itself was seen: from then on it cannot be asked for again unseen."""
        return bool(self._text or self._calls or self._thought)

    def feed(self, chunk: object, event: str = "") -> Iterator[Delta]:
        """What ``chunk`` adds to the text.

        Raises:
            StreamError: the chunk is an error.
        """
        if not isinstance(chunk, dict):
            return
        if event == "error" or chunk.get("error"):
            raise _stream_error(chunk.get("error") or chunk)
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                yield from self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> Iterator[Delta]:
        if error := choice.get("error"):
            raise _stream_error(error)
        self._count(choice.get("usage"))
        delta = choice.get("delta")
        if delta is None and not self.has_begun:
            delta = choice.get("message")  # a server that does not stream
        if isinstance(delta, dict):
            for name in ("reasoning_content", "reasoning"):
                if isinstance(delta.get(name), str):
                    yield from self._say("reasoning", delta[name])
                    break
            yield from self._say("text", _content(delta.get("content")))
            yield from self._say("text", _content(delta.get("refusal")))
            fragments = delta.get("tool_calls")
            for fragment in fragments if isinstance(fragments, list) else ():
                self._calls.feed(fragment)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            if reason == "error":
                raise StreamError("finish_reason error", retryable=True)
            self.finish_reason = reason

    def end(self) -> Iterator[Delta]:
        """What was held back."""
        for kind in self._joiners:
            yield from self._say(kind, "", self._joiners[kind].end())

    def _say(self, kind: str, text: str, complete: str | None = None) -> Iterator[Delta]:
        text = self._joiners[kind].feed(text) if complete is None else complete
        if not text:
            return
        if kind == "text":
            self._text.append(text)
        else:
            self._thought = True
        yield Delta(kind, text)

    def _count(self, usage: object) -> None:
        # Providers send running totals: the last one is the sum.
        if isinstance(usage, dict) and (read := _usage(usage)):
            self._usage = read

    def turn(self, asked_model: str) -> ModelTurn:
        """The whole answer.

        Raises:
            ModelNoOutput: neither text nor calls.
        """
        text = "".join(self._text)
        calls = self._calls.calls(self.finish_reason)
        if not text.strip() and not calls:
            raise ModelNoOutput(_NOTHING.get(self.finish_reason, ""), retryable=False)
        return ModelTurn(text, calls, self.finish_reason, self._usage, self._model or asked_model)


_NOTHING = {
    "length": "The model reached its token limit before it said anything.",
    "content_filter": "The provider's content filter stopped the answer.",
}


def _content(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # parts, as some servers send them
        return "".join(
            part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def _tokens(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _usage(usage: dict[str, Any]) -> TokenUsage | None:
    def part(outer: str, name: str) -> int | None:
        details = usage.get(outer)
        return _tokens(details.get(name)) if isinstance(details, dict) else None

    read = TokenUsage(
        input=_tokens(usage.get("prompt_tokens")),
        output=_tokens(usage.get("completion_tokens")),
        cache_read=part("prompt_tokens_details", "cached_tokens"),
        reasoning=part("completion_tokens_details", "reasoning_tokens"),
    )
    return None if read.input is None and read.output is None else read


def _stream_error(error: object) -> StreamError:
    if not isinstance(error, dict):
        return StreamError(str(error), retryable=is_passing(None, str(error).lower()))
    status = next(
        (number for key in ("code", "status", "status_code") if (number := _status(error.get(key)))), None
    )
    words = f"{error.get('code')} {error.get('type')}".lower()
    return StreamError(str(error), retryable=is_passing(status, words), status=status)


def _status(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:4])
    return value if isinstance(value, int) and 400 <= value <= 599 else None
