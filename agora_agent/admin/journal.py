"""The engine's side of a run, for operators: its row and its journal. The one module here that knows the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import DatabaseError

from agora_agent import codec
from agora_agent.models import AgentRun

ENGINE_APP = "agora_agent.durable"
#: Journal rows of one page.
PAGE = 50


@dataclass(frozen=True)
class Entry:
    """One journal row as the table shows it. ``started_at`` is a task's; a local step has only its end."""

    pos: str
    name: str
    kind: str
    ok: bool
    epoch: int
    started_at: Any
    finished_at: Any
    payload: Any


@dataclass(frozen=True)
class JournalPage:
    """A page of the journal, and the engine's row of the run."""

    engine: Any
    entries: list[Entry]
    total: int
    number: int
    pages: int

    @property
    def before(self) -> int:
        """The number of the page before; 0 if this is the first."""
        return self.number - 1

    @property
    def after(self) -> int:
        """The number of the next page; 0 if this is the last."""
        return self.number + 1 if self.number < self.pages else 0


def journal_page(run: AgentRun, page: str) -> JournalPage | None:
    """Page ``page`` of the journal of ``run``; None for inline runs and where the engine is not installed."""
    if not run.durable or not apps.is_installed(ENGINE_APP):
        return None
    from agora_agent.durable import models as engine

    try:
        row = engine.Run.objects.filter(pk=run.pk).first()
        keys = engine.Journal.objects.filter(run_id=run.pk).values_list("pk", "pos")
        ordered = [pk for pk, _pos in sorted(keys, key=lambda key: _natural(key[1]))]
    except DatabaseError:  # not migrated: durable_state says so at the top of the page
        return None
    pages = max(-(-len(ordered) // PAGE), 1)
    number = min(max(int(page), 1), pages) if page.isdecimal() else 1
    wanted = ordered[(number - 1) * PAGE : number * PAGE]
    rows = engine.Journal.objects.in_bulk(wanted)
    tasks = engine.Task.objects.filter(run_id=run.pk, pos__in=[row.pos for row in rows.values()])
    began = dict(tasks.values_list("pos", "created_at"))
    entries = [_entry(rows[pk], began) for pk in wanted if pk in rows]
    return JournalPage(row, entries, len(ordered), number, pages)


def _entry(row: Any, began: dict[str, Any]) -> Entry:
    try:
        payload = codec.decode(row.payload)
    except (ValueError, TypeError):  # written by a newer codec: shown as it is stored
        payload = row.payload
    return Entry(
        pos=row.pos,
        name=row.name,
        kind=row.get_kind_display(),
        ok=row.ok,
        epoch=row.epoch,
        started_at=began.get(row.pos),
        finished_at=row.created_at,
        payload=payload,
    )


def _natural(pos: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", pos) if part]
