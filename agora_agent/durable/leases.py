"""One heartbeat thread per process: it carries cancel flags to running work and keeps its claims alive.

Every half second one SELECT looks at all held rows; every third of a lease one UPDATE for each table renews those
whose step is within its deadline. A claim is lost when its row has another owner, or when no renewal has succeeded
for a whole lease: then its work is told to stop, and whatever it still writes is refused by its fence.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from django.db import connections
from django.db.models import F

from agora_agent.abort import AbortSignal
from agora_agent.durable import store
from agora_agent.durable.models import Run, Task

logger = logging.getLogger("agora_agent.durable")

CANCELLED, LOST, DEADLINE, SHUTDOWN = "cancelled", "lost", "deadline", "shutdown"
LOOK_SECONDS = 0.5


class Held:
    """A claim of this process, and the signal that stops the work done under it."""

    def __init__(
        self, model: type[Run] | type[Task], row_id: uuid.UUID, run_id: uuid.UUID, owner: str
    ) -> None:
        self.model, self.row_id, self.run_id, self.owner = model, row_id, run_id, owner
        self.abort = AbortSignal()
        self.renewed = time.monotonic()
        self.deadline = float("inf")

    def allow(self, seconds: float) -> None:
        """The step that begins now keeps the claim alive for at most so long."""
        self.deadline = time.monotonic() + seconds

    @property
    def lost(self) -> bool:
        """True if the claim is somebody else's now, or is given up."""
        return self.abort.aborted and self.abort.reason != CANCELLED

    @property
    def cancelled(self) -> bool:
        """True if the run was asked to stop."""
        return self.abort.aborted and self.abort.reason == CANCELLED


class LeaseKeeper:
    """The claims that this process holds."""

    def __init__(self, lease_seconds: float, *, beats: bool) -> None:
        self._lease = lease_seconds
        self._beats = beats
        self._held: list[Held] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def hold(self, held: Held) -> Iterator[Held]:
        """Keep a claim alive within the block."""
        with self._changed:
            self._held.append(held)
            if self._beats and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agora-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield held
        finally:
            with self._changed:
                self._held.remove(held)
                self._changed.notify()

    def held(self) -> list[Held]:
        """The claims as they are now."""
        with self._changed:
            return list(self._held)

    def abort(self, run_id: uuid.UUID, reason: str) -> None:
        """Stop what this process does for a run, at once."""
        for held in self.held():
            if held.run_id == run_id:
                held.abort.abort(reason)

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                # short work is over before it needs a beat
                while self._still_held(min(LOOK_SECONDS, self._lease / 6)):
                    self._beat()
                connections.close_all()
        except BaseException:
            # the next claim starts another thread; those held now are judged by their fences
            logger.exception("the heartbeat thread ended")
            with self._changed:
                self._thread = None
        finally:
            connections.close_all()

    def _wait_for_work(self) -> bool:
        """False after some idle seconds: then the thread goes."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held, timeout=5):
                self._thread = None
                return False
        return True

    def _still_held(self, seconds: float) -> bool:
        with self._changed:
            return not self._changed.wait_for(lambda: not self._held, timeout=seconds)

    def _beat(self) -> None:
        held = self.held()
        now = time.monotonic()
        try:
            self._look(held)
            due = [item for item in held if now - item.renewed >= self._lease / 3 and now < item.deadline]
            for model in (Run, Task):
                self._renew(model, [item for item in due if item.model is model and not item.lost])
        except Exception:
            logger.warning("a heartbeat failed", exc_info=True)
            connections.close_all()
        for item in held:
            if now >= item.deadline:
                item.abort.abort(DEADLINE)
            elif now - item.renewed >= self._lease and time.monotonic() - item.renewed >= self._lease:
                item.abort.abort(LOST)

    def _look(self, held: list[Held]) -> None:
        using = store.alias()
        runs = [item.row_id for item in held if item.model is Run]
        tasks = [item.row_id for item in held if item.model is Task]
        columns = ("id", "owner", "status", "run_status", "cancelled")
        of_runs = (
            Run.objects.using(using)
            .filter(id__in=runs)
            .annotate(run_status=F("status"), cancelled=F("cancel_at"))
            .values_list(*columns)
        )
        of_tasks = (
            Task.objects.using(using)
            .filter(id__in=tasks)
            .annotate(run_status=F("run__status"), cancelled=F("run__cancel_at"))
            .values_list(*columns)
        )
        rows: list[tuple[Any, ...]] = list(
            of_runs.union(of_tasks, all=True) if runs and tasks else of_runs if runs else of_tasks
        )
        seen = {(row[0], row[1]): row[2:] for row in rows}
        for item in held:
            status, run_status, cancelled = seen.get((item.row_id, item.owner), ("", "", None))
            if cancelled is not None or run_status == Run.Status.CANCELLED:
                item.abort.abort(CANCELLED)
            elif status != "running" or run_status not in Run.LIVE:
                item.abort.abort(LOST)

    def _renew(self, model: type[Run] | type[Task], due: list[Held]) -> None:
        if not due:
            return
        began = time.monotonic()
        rows: Any = model._default_manager.using(store.alias())
        rows.filter(
            id__in=[item.row_id for item in due],
            owner__in=[item.owner for item in due],
            status="running",
        ).update(lease_until=store.after(self._lease))
        # one that was not matched has lost its row: the next look, on the same clock, says so
        for item in due:
            item.renewed = began
