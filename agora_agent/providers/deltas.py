"""Carries deltas from the background loop to the thread that asked, never more than it can take."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Coroutine
from typing import Any, TypeVar

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import ModelFailed, RunCancelled
from agora_agent.providers import background
from agora_agent.providers.base import TextSink
from agora_agent.providers.chunks import Delta

T = TypeVar("T")

#: Deltas that may wait for a slow sink; then the answer is not read any further.
CAPACITY = 256
# Waking the loop costs a system call: once for so many.
_BATCH = 64


class DeltaChannel:
    """One answer's way from the loop to the caller."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Delta | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(CAPACITY)

    async def put(self, delta: Delta) -> None:
        """Hand on a delta; waits while the channel is full."""
        await self._room.acquire()
        self._queue.put(delta)

    def _make_room(self) -> None:
        for _ in range(_BATCH):
            self._room.release()

    def run(self, work: Coroutine[Any, Any, T], sink: TextSink, abort: AbortSignal) -> T:
        """Run ``work`` in the loop, tell ``sink`` in this thread, and return what ``work`` returns.

        Raises:
            RunCancelled: ``abort`` fired. What the sink and ``work`` raise comes through as it is.
        """
        loop = background.loop()
        future = asyncio.run_coroutine_threadsafe(work, loop)
        # The wake-up does not wait for the loop to notice: a connection that is slow to close holds nobody up.
        future.add_done_callback(lambda _: self._queue.put(None))
        forget = abort.on_abort(lambda: self._queue.put(None))
        try:
            taken = 0
            while (delta := self._queue.get()) is not None and not abort.aborted:
                (sink.text if delta.kind == "text" else sink.reasoning)(delta.text)
                taken += 1
                if taken % _BATCH == 0:
                    loop.call_soon_threadsafe(self._make_room)
            if abort.aborted:
                raise RunCancelled(abort.reason)
            return future.result()
        except concurrent.futures.CancelledError:
            # The process stops: nobody cancelled the run, another process shall ask again.
            raise ModelFailed("The process stopped during the answer.", retryable=True) from None
        finally:
            forget()
            future.cancel()
