"""The journal of a durable run, for those who may see payloads; the engine's app may be absent."""

from __future__ import annotations

import json
import uuid
from typing import Any

from agora_agent.api.serializers.base import told_time
from agora_agent.runners.journal import read_journal

MAX_ROWS = 1000


def entries(run_id: uuid.UUID) -> list[dict[str, Any]] | None:
    """The first :data:`MAX_ROWS` checkpoints of a run in the order of the journal; None without the engine."""
    found = read_journal(run_id, 0, MAX_ROWS)
    if found is None:
        return None
    return [
        {
            "position": row.pos,
            "name": row.name,
            "kind": row.kind,
            "ok": row.ok,
            "payload": _as_stored(row.payload),
            "createdAt": told_time(row.created_at),
        }
        for row in found.rows
    ]


def _as_stored(text: str) -> Any:
    """The codec's own text as plain JSON, tags and all: an operator compares it with the row."""
    try:
        return json.loads(text)
    except ValueError:
        return text
