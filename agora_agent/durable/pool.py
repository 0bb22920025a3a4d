"""The threads of a process that drives runs: workers, fed by hints and by a poller, and a sweeper.

Daemon threads of our own: an executor's threads are joined at exit and would delay it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from django.db import connections

from agora_agent.durable import leases, lookups, store, taskstore
from agora_agent.durable.models import Run

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")
Kind = Literal["run", "task"]


class Pool:
    """A bounded number of threads that drive runs and execute tasks."""

    def __init__(self, engine: Engine, *, threads: int, poll_seconds: float) -> None:
        self._engine, self._poll_seconds = engine, poll_seconds
        self._state = threading.Condition()
        self._work: deque[tuple[Kind, uuid.UUID]] = deque()
        self._busy: set[tuple[Kind, uuid.UUID]] = set()
        self._again: set[tuple[Kind, uuid.UUID]] = set()
        #: How many runs and tasks at once; 0: this process only sweeps.
        self.size = threads
        self._idle = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(target,), name=f"agora-{name}", daemon=True)
            for name, target in [
                *[(f"worker-{index}", self._worker) for index in range(threads)],
                *([("poller", self._poller)] if threads else []),
                ("sweeper", self._sweeper),
            ]
        ]

    def start(self) -> None:
        """Begin: the first poll and the first sweep come at once."""
        for thread in self._threads:
            thread.start()

    def submit(self, kind: Kind, row_id: uuid.UUID) -> None:
        """Something may be due: look at it soon. A hint for what is in hand means another look after it."""
        item = (kind, row_id)
        with self._state:
            if item in self._busy:
                self._again.add(item)
            elif item not in self._work:
                self._work.append(item)
                self._state.notify()

    def stop(self, grace_seconds: float) -> bool:
        """Claim nothing more, let what runs end within the grace time, then give it up. True if all ended."""
        self._stop.set()
        with self._state:
            self._work.clear()
            self._state.notify_all()
        deadline = time.monotonic() + grace_seconds
        with self._state:
            ended = self._state.wait_for(lambda: not self._busy, timeout=grace_seconds)
        if not ended:
            self._give_up()
            deadline = time.monotonic() + 2
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.5))
        return ended

    def _give_up(self) -> None:
        for held in self._engine.leases.held():
            try:
                if held.model is Run:
                    claim = store.read_claim(held.run_id, held.owner)
                    if claim is not None:
                        store.release(claim)
                else:
                    self._give_up_task(held)
            except Exception:
                logger.exception("a claim could not be released; its lease will end")
            held.abort.abort(leases.SHUTDOWN)

    def _give_up_task(self, held: leases.Held) -> None:
        row = taskstore.read(held.row_id)
        # an at-most-once step may have taken effect: only its process's end makes it a doubt
        if row is not None and row.owner == held.owner and row.info.mode == "at_least_once":
            running = taskstore.RUNNING
            taskstore.requeue(row.info, before=running, delay=0, error="the process was stopped")

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        finally:
            connections.close_all()

    def _worker(self) -> None:
        while not self._stop.is_set():
            with self._state:
                self._idle += 1
                self._state.wait_for(lambda: self._work or self._stop.is_set())
                self._idle -= 1
                if self._stop.is_set():
                    return
                item = self._work.popleft()
                self._busy.add(item)
            try:
                self._engine.execute(*item)
            except BaseException:
                # whatever it was, this thread is one of few and goes on
                logger.warning("a hint came to nothing; the row waits for the next poll", exc_info=True)
                connections.close_all()
            finally:
                with self._state:
                    self._busy.discard(item)
                    again = item in self._again
                    self._again.discard(item)
                    self._state.notify_all()
                if again:
                    self.submit(*item)

    def _poller(self) -> None:
        while not self._stop.is_set():
            with self._state:
                free = self._idle - len(self._work)
            if free > 0:
                try:
                    self._poll(free)
                except Exception:
                    logger.warning("a poll failed", exc_info=True)
                    connections.close_all()
            self._stop.wait(self._poll_seconds)

    def _poll(self, free: int) -> None:
        engine = self._engine
        for task_id in lookups.due_tasks(engine.steps(), engine.queues, free):
            self.submit("task", task_id)
        for run_id in lookups.due_runs(engine.claimable(), free):
            self.submit("run", run_id)

    def _sweeper(self) -> None:
        while not self._stop.is_set():
            try:
                self._engine.sweep()
            except Exception:
                logger.warning("a sweep failed", exc_info=True)
                connections.close_all()
            self._stop.wait(self._engine.sweep_seconds)
