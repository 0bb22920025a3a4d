"""Models behind the Chat Completions API: OpenAI's own and every server that speaks it."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import os
import random
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agora_agent.abort import AbortSignal
from agora_agent.conf import agora_settings
from agora_agent.exceptions import ModelFailed, RunCancelled
from agora_agent.providers import background
from agora_agent.providers.base import ModelRequest, ModelTurn, TextSink
from agora_agent.providers.chat import payload
from agora_agent.providers.chunks import AnswerAssembler, StreamError, is_passing
from agora_agent.providers.deltas import DeltaChannel
from agora_agent.providers.jsontext import BadJson, parse
from agora_agent.providers.sse import EventParser

if TYPE_CHECKING:
    from openai import AsyncOpenAI

logger = logging.getLogger("agora_agent.providers")

ATTEMPTS = 3
CONNECT_SECONDS = 10.0
#: A server that asks for a longer pause is not waited for.
LONGEST_PAUSE_SECONDS = 60.0
#: How long the usage may come after the finish reason.
TAIL_SECONDS = 5.0

_clients: dict[tuple[Any, ...], AsyncOpenAI] = {}
_inherited: list[Any] = []


class _Failure(Exception):
    """One attempt failed. ``message`` may travel, ``detail`` goes to the log."""

    def __init__(self, message: str, detail: str, *, retryable: bool, pause: float | None = None) -> None:
        super().__init__(message)
        self.message, self.detail, self.retryable, self.pause = message, detail, retryable, pause


class OpenAIProvider:
    """Streams an answer; aborting ends the request at once, also before its first byte.

    Args:
        base_url: the server; ``AGORA_AGENT["OPENAI_BASE_URL"]`` without it, else the SDK's environment.
        api_key: the key; ``AGORA_AGENT["OPENAI_API_KEY"]`` without it, else the SDK's environment.
        backoff_seconds: the pause before the second attempt; the third waits four times as long.
    """

    name = "openai"
    offline = False

    def __init__(
        self, *, base_url: str | None = None, api_key: str | None = None, backoff_seconds: float = 0.5
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._backoff = backoff_seconds

    def run_turn(self, request: ModelRequest, sink: TextSink, abort: AbortSignal) -> ModelTurn:
        """Ask the model and hand its words to ``sink``, in this thread.

        Raises:
            RunCancelled: ``abort`` fired.
            ModelFailed: no usable answer. Before the first token the request was repeated; after it, or never
                again, by ``retryable``.
        """
        if abort.aborted:
            raise RunCancelled(abort.reason)
        _sdk()  # the first import takes a second or more: not in the loop that others share
        channel = DeltaChannel()
        return channel.run(self._ask(request, channel), sink, abort)

    async def _ask(self, request: ModelRequest, channel: DeltaChannel) -> ModelTurn:
        seconds = agora_settings.MODEL_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await self._persist(request, channel, seconds)
        except TimeoutError:
            raise ModelFailed(f"The model took longer than {seconds:g} seconds.", retryable=True) from None

    async def _persist(self, request: ModelRequest, channel: DeltaChannel, seconds: float) -> ModelTurn:
        client = self._client(seconds)
        attempt = 1
        while True:
            answer = AnswerAssembler()
            try:
                await self._attempt(client, request, answer, channel)
                return answer.turn(request.model)
            except _Failure as failure:
                _log(failure, request, attempt, client.api_key)
                if answer.has_begun:
                    raise ModelFailed(failure.message, retryable=failure.retryable) from None
                pause = self._backoff * 4 ** (attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311
                pause = max(pause, failure.pause or 0.0)
                if not failure.retryable or attempt == ATTEMPTS or pause > LONGEST_PAUSE_SECONDS:
                    # Enough was tried here: were it retryable, the step would try all of it again.
                    raise ModelFailed(failure.message, retryable=False, attempts=attempt) from None
            await asyncio.sleep(pause)
            attempt += 1

    async def _attempt(
        self, client: AsyncOpenAI, request: ModelRequest, answer: AnswerAssembler, channel: DeltaChannel
    ) -> None:
        async with aclosing(_events(client, request, answer)) as events:
            async for event, data in events:
                try:
                    for delta in answer.feed(parse(data), event):
                        await channel.put(delta)
                except BadJson as error:
                    message = "The model server sent an unreadable answer."
                    raise _Failure(message, data, retryable=True) from error
                except StreamError as error:
                    raise _Failure(_refusal(error.status), str(error), retryable=error.retryable) from error
        for delta in answer.end():
            await channel.put(delta)
        if not answer.finish_reason:
            raise _Failure("The model's answer broke off.", "no finish reason", retryable=True)

    def _client(self, seconds: float) -> AsyncOpenAI:
        """The process's client for this server, made in the loop at first use."""
        openai = _sdk()
        base_url = self._base_url or agora_settings.OPENAI_BASE_URL
        api_key = self._api_key or agora_settings.OPENAI_API_KEY or os.environ.get("OPENAI_API_KEY")
        if not api_key and (base_url or os.environ.get("OPENAI_BASE_URL")):
            api_key = "none"  # servers of one's own often want no key; the SDK insists on one
        key = (base_url, api_key, seconds)
        if key not in _clients:
            try:
                _clients[key] = openai.AsyncOpenAI(
                    base_url=base_url,
                    api_key=api_key,
                    max_retries=0,
                    timeout=openai.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
                )
            except openai.OpenAIError as error:
                raise ModelFailed(
                    'The model provider has no key: set AGORA_AGENT["OPENAI_API_KEY"] or OPENAI_API_KEY.'
                ) from error
        return _clients[key]


def _sdk() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ModelFailed("The package openai is missing: pip install 'agora-agent[openai]'.") from error
    return openai


async def _events(
    client: AsyncOpenAI, request: ModelRequest, answer: AnswerAssembler
) -> AsyncGenerator[tuple[str, str]]:
    """The events of one request's answer.

    Read from the bytes: the SDK's own stream hides what servers do differently, and lines are split at characters
    that a model may write.
    """
    openai = _sdk()
    body: Any = payload(request)
    try:
        async with client.chat.completions.with_streaming_response.create(**body) as response:
            if "json" in response.headers.get("content-type", ""):
                yield "", (await response.read()).decode("utf-8", "replace")
                return
            parser, chunks = EventParser(), response.iter_bytes()
            while True:
                try:
                    async with asyncio.timeout(TAIL_SECONDS if answer.finish_reason else None):
                        chunk = await anext(chunks, None)
                except TimeoutError:
                    return
                for event in parser.end() if chunk is None else parser.feed(chunk):
                    if event.data == "[DONE]":
                        return
                    yield event
                if chunk is None:
                    return
    except openai.APIStatusError as error:
        words = f"{error.code} {error.type}".lower()
        raise _Failure(
            _refusal(error.status_code),
            f"{error.status_code} {error.body}",
            retryable=is_passing(error.status_code, words),
            pause=_retry_after(error.response.headers),
        ) from error
    except openai.APIConnectionError as error:
        detail = repr(error.__cause__ or error)
        raise _Failure("The model server cannot be reached.", detail, retryable=True) from error
    except Exception as error:
        if answer.finish_reason:
            return  # all that matters was said
        raise _Failure("The connection to the model server broke.", repr(error), retryable=True) from error


def _refusal(status: int | None) -> str:
    match status:
        case 401 | 403:
            return f"The model server does not accept the key ({status})."
        case 404:
            return "The model server does not know this model or address (404)."
        case 429:
            return "The model server is asked too often (429)."
        case None:
            return "The model server reported an error."
    return f"The model server {'failed' if status >= 500 else 'refused the request'} ({status})."


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The pause that the server asks for, in seconds."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        value = headers.get("retry-after")
        if not value:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


_KEYS = re.compile(r"(?i)\b(bearer\s+|(?:sk|pk|key)-)[\w.*+/=-]{4,}|(api[_-]?key\W{1,4})[\w.*+/=-]{4,}")


def _log(failure: _Failure, request: ModelRequest, attempt: int, key: str) -> None:
    detail = failure.detail.replace(key, "[masked]") if len(key) > 4 else failure.detail
    detail = _KEYS.sub(lambda match: f"{match[1] or match[2]}[masked]", detail)[:500]
    logger.warning(
        "Model request failed: %s",
        failure.message,
        extra={"run_id": request.run_id, "step": request.step, "attempt": attempt, "detail": detail},
    )


async def close_clients() -> None:
    """Close the connections of this process. Runs in the background loop."""
    clients = list(_clients.values())
    _clients.clear()
    for client in clients:
        await client.close()


def _forget_after_fork() -> None:
    # The parent's sockets: closing them here would do no good, using them would do harm.
    _inherited.extend(_clients.values())
    _clients.clear()


background.on_shutdown(close_clients)
os.register_at_fork(after_in_child=_forget_after_fork)
