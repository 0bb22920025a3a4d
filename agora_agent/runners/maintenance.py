"""What has to be done now and then, with either runner: stale inline runs, expired approvals and keys."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from django.db import connections

from agora_agent.conf import agora_settings
from agora_agent.governance.decisions import expire_due
from agora_agent.models import IdempotencyKey
from agora_agent.runners.stale import settle_stale

logger = logging.getLogger("agora_agent.runners")

JOBS: tuple[Callable[[], object], ...] = (settle_stale, expire_due, IdempotencyKey.prune_expired)

_lock = threading.Lock()
_running: tuple[int, threading.Thread, threading.Event] | None = None


def maintain() -> None:
    """One pass. Safe to run anywhere, any number of times at once: every change is conditional."""
    for job in JOBS:
        try:
            job()
        except Exception:
            logger.exception("maintenance: %s failed; the next pass tries again", job.__name__)
            connections.close_all()


def start_maintenance() -> None:
    """Have a daemon thread of this process do a pass every ``SWEEP_SECONDS``. Idempotent; a fork starts its own."""
    global _running
    with _lock:
        if _running is not None and _running[0] == os.getpid():
            return
        stop = threading.Event()
        thread = threading.Thread(target=_loop, args=(stop,), name="agora-maintenance", daemon=True)
        _running = (os.getpid(), thread, stop)
    thread.start()


def stop_maintenance(timeout: float = 10.0) -> None:
    """End the thread after the pass that it is in; wait at most ``timeout`` seconds. For tests and shutdown."""
    global _running
    with _lock:
        running, _running = _running, None
    if running is not None and running[0] == os.getpid():
        running[2].set()
        running[1].join(timeout)


def _loop(stop: threading.Event) -> None:
    while not stop.is_set():
        maintain()
        connections.close_all()
        stop.wait(agora_settings.SWEEP_SECONDS)
