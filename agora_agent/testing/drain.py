"""Durable runs in tests without threads and without waiting."""

from __future__ import annotations

import datetime as dt

from django.db.models import F

from agora_agent.durable import get_engine
from agora_agent.durable.models import Run, Task
from agora_agent.models import AgentRun, Decision, ToolCall
from agora_agent.runners.maintenance import maintain


def drain(limit: int = 1000) -> int:
    """Drive in this thread whatever is due until nothing is; how many pieces of work that were.

    Use it where ``on_commit`` never fires (``TestCase``), with ``AGORA_AGENT["DISPATCHER"] = "immediate"``.
    """
    return get_engine().run_due(limit)


def advance(seconds: float) -> None:
    """Let time pass: everything that waits for a moment is ``seconds`` nearer to it; then sweep and expire.

    The database's clock cannot be moved, so the stored moments are.
    """
    passed = dt.timedelta(seconds=seconds)
    for model, names in (
        (Run, ("available_at", "lease_until", "hinted_at")),
        (Task, ("available_at", "lease_until", "hinted_at")),
        (AgentRun, ("heartbeat_at",)),
        (ToolCall, ("expires_at", "decided_at")),
        (Decision, ("created_at",)),
    ):
        model._default_manager.update(**{name: F(name) - passed for name in names})
    maintain()
    get_engine().sweep()
