"""The engine's side of a run, for operators: its row and its journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agora_agent import codec
from agora_agent.models import AgentRun
from agora_agent.runners.journal import read_journal

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
    if not run.durable:
        return None
    number = max(int(page), 1) if page.isdecimal() else 1
    found = read_journal(run.pk, (number - 1) * PAGE, PAGE)
    if found is not None and not found.rows and number > 1:  # behind the end: the last page
        number = max(-(-found.total // PAGE), 1)
        found = read_journal(run.pk, (number - 1) * PAGE, PAGE)
    if found is None:  # not installed or not migrated: durable_state says so at the top of the page
        return None
    entries = [_entry(row, found.dispatched_at) for row in found.rows]
    return JournalPage(found.run, entries, found.total, number, max(-(-found.total // PAGE), 1))


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
