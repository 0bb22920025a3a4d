"""The engine's side of a run as doors show it: its row, a page of its journal, its tasks. Read-only."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.db import DatabaseError

ENGINE_APP = "agora_agent.durable"


@dataclass(frozen=True)
class JournalSlice:
    """Some journal rows in the order of their positions, and what belongs to them."""

    #: The engine's row of the run; None if it is gone.
    run: Any
    rows: list[Any]
    total: int
    #: Position → when a dispatched step's task was made.
    dispatched_at: dict[str, Any] = field(default_factory=dict)


def read_journal(run_id: uuid.UUID, offset: int, limit: int) -> JournalSlice | None:
    """``limit`` journal rows from ``offset`` on; None where the engine is not installed or not migrated."""
    if not apps.is_installed(ENGINE_APP):
        return None
    from agora_agent.durable.models import Journal, Run, Task
    from agora_agent.durable.store import alias

    using = alias()
    journal = Journal.objects.using(using).filter(run_id=run_id)
    try:
        run = Run.objects.using(using).filter(pk=run_id).first()
        rows = list(journal.order_by("pos")[offset : offset + limit])
        tasks = Task.objects.using(using).filter(run_id=run_id, pos__in=[row.pos for row in rows])
        return JournalSlice(run, rows, journal.count(), dict(tasks.values_list("pos", "created_at")))
    except DatabaseError:
        return None
