"""Waits of inline runs: events in this process, and one poller that finds what other processes wrote."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from agora_agent.abort import AbortSignal
from agora_agent.conf import agora_settings
from agora_agent.db import DbNow
from agora_agent.exceptions import RunCancelled
from agora_agent.models import AgentRun, Decision

logger = logging.getLogger("agora_agent.runners")

#: How long a decision made in another process may go unseen.
POLL_SECONDS = 0.5


class InlineRuns:
    """The inline runs of this process: which it holds, what they wait for, and their sign of life."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._held: dict[uuid.UUID, AbortSignal] = {}
        self._waits: dict[str, tuple[uuid.UUID, threading.Event]] = {}
        self._poller: threading.Thread | None = None
        self._beaten = 0.0

    @contextmanager
    def held(self, run_id: uuid.UUID, abort: AbortSignal) -> Iterator[None]:
        """While inside, this process gives the run's sign of life and hears that it is to stop."""
        with self._lock:
            outer = self._held.get(run_id)
            self._held[run_id] = abort
            if self._poller is None or not self._poller.is_alive():
                self._poller = threading.Thread(target=self._poll, name="agora-inline", daemon=True)
                self._poller.start()
        try:
            yield
        finally:
            with self._lock:
                if outer is None:
                    self._held.pop(run_id, None)
                self._lock.notify_all()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until this process holds no run, at most ``timeout`` seconds; True if it holds none."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._held, timeout)

    def abort(self, run_id: uuid.UUID) -> None:
        """Stop the run's work at once, if this process holds it."""
        with self._lock:
            signal = self._held.get(run_id)
        if signal is not None:
            signal.abort()

    def wake(self, key: str) -> None:
        """Something was decided about ``key``: let its wait look."""
        with self._lock:
            waiting = self._waits.get(key)
        if waiting is not None:
            waiting[1].set()

    def wait(
        self, key: str, call_pk: uuid.UUID, abort: AbortSignal, look: Callable[[], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Block until ``look`` finds a stored reply; holds no connection meanwhile.

        Raises:
            RunCancelled: the run was asked to stop.
        """
        event = threading.Event()
        with self._lock:
            self._waits[key] = (call_pk, event)
        forget = abort.on_abort(event.set)
        try:
            while True:
                if abort.aborted:
                    raise RunCancelled(abort.reason)
                if (found := look()) is not None:
                    return found
                connections.close_all()
                event.wait()
                event.clear()
        finally:
            forget()
            with self._lock:
                self._waits.pop(key, None)

    def _poll(self) -> None:
        me = threading.current_thread()
        stop = threading.Event()
        while True:
            stop.wait(min(POLL_SECONDS, agora_settings.LEASE_SECONDS / 6))
            with self._lock:
                if not self._held:
                    self._poller = None if self._poller is me else self._poller
                    break
                held, waits = dict(self._held), dict(self._waits)
            try:
                self._look(held, waits)
            except (DatabaseError, InterfaceError):
                logger.warning("the inline runs' poll failed", exc_info=True)
                connections.close_all()
        connections.close_all()

    def _look(
        self, held: dict[uuid.UUID, AbortSignal], waits: dict[str, tuple[uuid.UUID, threading.Event]]
    ) -> None:
        live = set(AgentRun.objects.filter(pk__in=held).live().values_list("pk", flat=True))
        for run_id in held.keys() - live:
            held[run_id].abort()
        if waits:
            calls = {call_pk for call_pk, _ in waits.values()}
            decided = set(
                Decision.objects.filter(tool_call_id__in=calls).values_list("tool_call_id", flat=True)
            )
            for call_pk, event in waits.values():
                if call_pk in decided:
                    event.set()
        if time.monotonic() - self._beaten >= agora_settings.LEASE_SECONDS / 3:
            self._beaten = time.monotonic()
            AgentRun.objects.filter(pk__in=live).update(heartbeat_at=DbNow())
