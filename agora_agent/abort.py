"""A flag that tells running work to stop, with callbacks for work that cannot look at a flag."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AbortSignal:
    """Set once, never cleared. Safe to read and to subscribe to from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason = ""

    @property
    def aborted(self) -> bool:
        """True once somebody asked to stop."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep until aborted or until ``seconds`` have passed; True if aborted."""
        return self._event.wait(seconds)

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when aborted (at once if it already is). Returns a function that unsubscribes."""
        with self._lock:
            if not self.aborted:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def abort(self, reason: str = "cancelled") -> None:
        """Ask the work to stop. The first reason stands; later calls do nothing."""
        with self._lock:
            if self.aborted:
                return
            self.reason = reason
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
