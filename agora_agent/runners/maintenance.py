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
_started_in: int | None = None


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
    global _started_in
    with _lock:
        if _started_in == os.getpid():
            return
        _started_in = os.getpid()
    threading.Thread(target=_loop, name="agora-maintenance", daemon=True).start()


def _loop() -> None:
    pause = threading.Event()
    while True:
        maintain()
        connections.close_all()
        pause.wait(agora_settings.SWEEP_SECONDS)
