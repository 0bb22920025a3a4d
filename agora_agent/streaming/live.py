"""Text of a model call that is still running, shown as it arrives: small transactions, twenty a second at most."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import QuerySet

from agora_agent.models import Frame
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData

logger = logging.getLogger("agora_agent.streaming")


class LiveText:
    """Where a provider puts its deltas. The first is written at once, later ones are gathered for ``interval``.

    ``guard`` runs last in each of its transactions and raises if the caller does not own the run any more; that
    surfaces in the caller's next call here.
    """

    def __init__(
        self,
        stream_id: uuid.UUID,
        guard: Callable[[], None],
        interval: float = 0.05,
        *,
        run_id: uuid.UUID | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.run_id = run_id or stream_id
        self._guard = guard
        self._interval = interval
        self._lock = threading.Lock()
        # [is it reasoning?, text] in the order of arrival
        self._waiting: list[tuple[bool, str]] = []
        self._due = 0.0
        self._scheduled = False
        self._broken: BaseException | None = None

    def text(self, delta: str) -> None:
        """A piece of the answer."""
        self._put(False, delta)

    def reasoning(self, delta: str) -> None:
        """A piece of what the model says to itself."""
        self._put(True, delta)

    def flush(self) -> None:
        """Write what waits. To be called when the model call has ended, before its result is recorded."""
        with self._lock:
            self._raise_broken()
            self._write(final=True)

    def _put(self, reasoning: bool, delta: str) -> None:
        if not delta:
            return
        with self._lock:
            self._raise_broken()
            if self._waiting and self._waiting[-1][0] is reasoning:
                delta = self._waiting.pop()[1] + delta
            self._waiting.append((reasoning, delta))
            if time.monotonic() >= self._due:
                try:
                    self._write()
                except (InterfaceError, OperationalError):
                    # Rolled back and still waiting here: the next delta or the end takes it along.
                    logger.warning("live text of run %s is late", self.run_id, exc_info=True)
            elif not self._scheduled:
                self._scheduled = True
                _late_writer.at(self._due, self._write_late)

    def _write_late(self) -> None:
        """The model has paused with text waiting."""
        with self._lock:
            self._scheduled = False
            try:
                if self._broken is None and time.monotonic() >= self._due:
                    self._write()
            except (InterfaceError, OperationalError):
                logger.warning("live text of run %s is late", self.run_id, exc_info=True)
            except BaseException as error:  # a fence is not an Exception
                self._broken = error

    def _write(self, *, final: bool = False) -> None:
        waiting, held = self._waiting, []
        if not final and waiting and "\ud800" <= waiting[-1][1][-1] <= "\udbff":
            # Half a character: its other half is in the next delta.
            reasoning, text = waiting[-1]
            waiting, held = [*waiting[:-1], (reasoning, text[:-1])], [(reasoning, text[-1])]
        ready = [self._frame(reasoning, text) for reasoning, text in waiting if text]
        if not ready:
            return
        try:
            self._commit(ready)
        except (InterfaceError, OperationalError):
            # A deadlock, or a server that hung up during a long pause: once more, on a connection that works.
            connections[frames.alias()].close_if_unusable_or_obsolete()
            self._commit(ready)
        self._waiting = held
        self._due = time.monotonic() + self._interval

    def _commit(self, ready: list[FrameData]) -> None:
        with transaction.atomic(using=frames.alias()):
            frames.append(self.stream_id, ready)
            self._guard()

    def _frame(self, reasoning: bool, text: str) -> FrameData:
        if reasoning:
            return FrameData("reasoning", {"runId": str(self.run_id), "text": text})
        # A delegated run's words say whose they are; a plain reader shows them all the same.
        whose = {} if self.run_id == self.stream_id else {"runId": str(self.run_id)}
        return FrameData("", {"delta": text, **whose})

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken


def rewind(stream_id: uuid.UUID, run_id: uuid.UUID, after: int) -> bool:
    """Tell readers, in the open transaction, to forget the text above frame ``after``: the step runs again.

    Returns:
        False if there is no such text: then nothing is written.
    """
    stale = Frame.objects.using(frames.alias()).filter(
        stream_id=stream_id, seq__gt=after, event__in=("", "reasoning")
    )
    if not stale.exists():
        return False
    return bool(frames.append(stream_id, [FrameData("rewind", {"runId": str(run_id), "after": after})]))


def step_start(stream_id: uuid.UUID, run_id: uuid.UUID, index: int) -> int:
    """The number of the frame that announced step ``index`` of a run, for :func:`rewind`; 0 if there is none."""
    announced: QuerySet[Any, tuple[Any, ...]] = (
        Frame.objects.using(frames.alias())
        .filter(stream_id=stream_id, event="step")
        .order_by("-seq")
        .values_list("seq", "data")
    )
    for seq, data in announced.iterator(chunk_size=50):
        if (data.get("runId"), data.get("index"), data.get("phase")) == (str(run_id), index, "start"):
            return int(seq)
    return 0


class _LateWriter:
    """One daemon thread per process that runs callbacks at their time; it ends when it has nothing to do."""

    _LINGER_SECONDS = 5.0
    _KEEP_CONNECTION_SECONDS = 0.1

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, callback: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._queue, (when, next(self._order), callback))
            if self._thread is None or not self._thread.is_alive():  # also after a fork
                self._thread = threading.Thread(target=self._run, name="agora-live-text", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            try:
                callback()
            finally:
                if not self._is_due_within(self._KEEP_CONNECTION_SECONDS):
                    connections.close_all()

    def _is_due_within(self, seconds: float) -> bool:
        with self._changed:
            return bool(self._queue) and self._queue[0][0] <= time.monotonic() + seconds

    def _next(self) -> Callable[[], None] | None:
        idle_until = time.monotonic() + self._LINGER_SECONDS
        with self._changed:
            while True:
                now = time.monotonic()
                if self._queue and self._queue[0][0] <= now:
                    return heapq.heappop(self._queue)[2]
                until = self._queue[0][0] if self._queue else idle_until
                if not self._queue and now >= idle_until:
                    self._thread = None
                    return None
                self._changed.wait(until - now)


_late_writer = _LateWriter()
