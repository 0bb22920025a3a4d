"""Follows streams for all readers of this process: one thread polls, readers wait on an event of their own loop.

The database is the only source. A wake-up makes the next poll come at once; without one, frames that another
process wrote arrive within a poll interval. A reader holds no connection and no thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple

from django.db import connections

from agora_agent.streaming import frames, layer, sse, wakeup
from agora_agent.streaming.frames import Head, StoredFrame
from agora_agent.streaming.wakeup import notify

__all__ = ["End", "Hub", "Item", "Subscription", "hub", "notify"]

logger = logging.getLogger("agora_agent.streaming")

#: How many frames wait for one reader; a slower one is served from the database when it has caught up.
QUEUE_FRAMES = 256
FASTEST_POLL_SECONDS = 0.1
SLOWEST_POLL_SECONDS = 1.0
# However many wake-ups arrive, polls are this far apart.
_POLL_GAP_SECONDS = 0.01


class Item:
    """A frame on its way to readers, encoded once for all of them."""

    def __init__(self, frame: StoredFrame) -> None:
        self.frame = frame

    @cached_property
    def sse(self) -> bytes:
        """The frame as a server-sent event."""
        return sse.encode(self.frame.event, self.frame.data, self.frame.seq)


class End(NamedTuple):
    """Nothing follows. ``event`` is empty if the stream was removed before its end was read."""

    event: str
    data: dict[str, Any]


class Subscription:
    """One reader's place in one stream. Used by one task; leaving the ``async with`` block ends it at once."""

    def __init__(self, hub: Hub, stream_id: uuid.UUID, after: int) -> None:
        self.stream_id = stream_id
        #: The number of the newest frame that was queued here. Belongs to the polling thread.
        self.position = after
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._queue: deque[Item] = deque()
        self._end: End | None = None

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. Harmless when repeated."""
        self._hub.leave(self)

    async def next(self, timeout: float) -> list[Item | End]:  # noqa: ASYNC109 - a keep-alive is no cancellation
        """The items that have arrived, in order; an empty list after ``timeout`` seconds without any."""
        if not self._queue and self._end is None:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), timeout)
            except TimeoutError:
                return []
        # Read first: whatever was queued before the end is then in the queue.
        ended = self._end
        items: list[Item | End] = []
        while self._queue:
            items.append(self._queue.popleft())
        if ended is not None:
            items.append(ended)
        elif len(items) >= QUEUE_FRAMES:
            # There was no room for more; there is now.
            self._hub.ring(self.stream_id)
        return items

    @property
    def room(self) -> int:
        """How many more frames may be queued. For the polling thread."""
        return QUEUE_FRAMES - len(self._queue)

    def deliver(self, items: Iterable[Item], end: End | None = None) -> bool:
        """Queue items for the reader, from the polling thread. False if the reader's loop is gone."""
        self._queue.extend(items)
        if end is not None:
            self._end = end
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:
            return False
        return True


class Hub:
    """The streams that somebody in this process reads. The thread lives as long as there is a reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._rung: set[uuid.UUID] = set()
        self._readers: dict[uuid.UUID, list[Subscription]] = {}
        self._thread: threading.Thread | None = None

    def follow(self, stream_id: uuid.UUID, after: int = 0) -> Subscription:
        """Read a stream from frame ``after`` + 1 on; to be called in the reader's event loop."""
        subscription = Subscription(self, stream_id, after)
        with self._lock:
            self._readers.setdefault(stream_id, []).append(subscription)
            self._rung.add(stream_id)
            if self._thread is None or not self._thread.is_alive():  # also after a fork
                self._thread = threading.Thread(target=self._run, name="agora-stream-hub", daemon=True)
                self._thread.start()
        self._wake.set()
        layer.bridge.listen(wakeup.wake_local)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Forget a reader."""
        with self._lock:
            readers = self._readers.get(subscription.stream_id, [])
            if subscription in readers:
                readers.remove(subscription)
            if not readers:
                self._readers.pop(subscription.stream_id, None)
            if not self._readers:
                self._wake.set()

    def ring(self, stream_id: uuid.UUID) -> None:
        """Look at this stream now, if anybody here reads it. From any thread."""
        with self._lock:
            if stream_id not in self._readers:
                return
            self._rung.add(stream_id)
        self._wake.set()

    def count(self) -> int:
        """How many readers there are."""
        with self._lock:
            return sum(map(len, self._readers.values()))

    def _run(self) -> None:
        try:
            self._poll_until_deserted()
        finally:
            connections.close_all()

    def _poll_until_deserted(self) -> None:
        interval = FASTEST_POLL_SECONDS
        full_poll = time.monotonic()
        while True:
            self._wake.clear()
            with self._lock:
                if not self._readers:
                    self._thread = None
                    return
                rung = self._rung & self._readers.keys()
                self._rung.clear()
                everything = time.monotonic() >= full_poll
                wanted = set(self._readers) if everything else rung
            try:
                moved = self._poll(wanted) if wanted else False
            except Exception:
                logger.exception("streams cannot be read")
                connections.close_all()
                moved, interval = False, SLOWEST_POLL_SECONDS
                with self._lock:
                    self._rung |= rung
                time.sleep(interval)
            now = time.monotonic()
            if moved or rung:
                # Where something happens, more will, and the next writer may be another process.
                interval = FASTEST_POLL_SECONDS
                full_poll = min(full_poll, now + interval)
            if everything:
                full_poll = now + interval
                interval = min(interval * 2, SLOWEST_POLL_SECONDS)
            time.sleep(_POLL_GAP_SECONDS)
            self._wake.wait(max(0.0, full_poll - time.monotonic()))

    def _poll(self, stream_ids: set[uuid.UUID]) -> bool:
        """Hand each reader of these streams what is new; true if there was anything."""
        heads = frames.heads(stream_ids)
        moved = False
        for stream_id in stream_ids:
            with self._lock:
                readers = list(self._readers.get(stream_id, ()))
            if readers:
                moved |= self._serve(stream_id, heads.get(stream_id), readers)
        return moved

    def _serve(self, stream_id: uuid.UUID, head: Head | None, readers: list[Subscription]) -> bool:
        if head is None:
            self._finish(readers, End("", {}))
            return True
        moved = False
        unread: dict[int, list[Item]] = {}
        finished: list[Subscription] = []
        for reader in readers:
            if reader.position < head.last_seq and reader.room > 0:
                # Readers at the same place share one query.
                if reader.position not in unread:
                    rows = frames.read_frames(stream_id, reader.position, QUEUE_FRAMES)
                    unread[reader.position] = [Item(row) for row in rows]
                items = unread[reader.position][: reader.room]
                moved |= self._hand_over(reader, items, head)
            if head.closed and reader.position >= head.last_seq:
                finished.append(reader)
            elif reader.position < head.last_seq and reader.room > 0:
                self.ring(stream_id)
        if finished:
            end = frames.read(stream_id, head.last_seq, 0)
            self._finish(finished, End(end.terminal_event, end.terminal_data) if end else End("", {}))
        return moved

    def _hand_over(self, reader: Subscription, items: list[Item], head: Head) -> bool:
        # Frames that were pruned from the middle of a closed stream are skipped, not waited for.
        reader.position = items[-1].frame.seq if items else head.last_seq
        if not reader.deliver(items):
            self.leave(reader)
        return bool(items)

    def _finish(self, readers: list[Subscription], end: End) -> None:
        for reader in readers:
            reader.deliver((), end)
            self.leave(reader)


hub = Hub()
wakeup.on_wake(hub.ring)
