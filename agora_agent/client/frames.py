"""A frame of a run's stream as a program acts on it."""

from __future__ import annotations

import json
from typing import Any

#: Frames of a call that is parked on a person: useless without the run that they are answered under.
_PARKED = ("approval", "elicitation")


def decode_frame(event: str, data: str) -> dict[str, Any] | None:
    """One server-sent event as a dict with a ``type``.

    Args:
        event: the event's name; empty or ``"message"`` for assistant text.
        data: its JSON text.

    Returns:
        ``{"type": "text", "delta": …}`` for assistant text, else ``{"type": event, …members}``; a frame about a
        call has its id as ``toolCallId``. None for what nobody can act on: data that is not a JSON object, and a
        parked call without the ``runId`` that it must be answered under. An event that is not known is handed on.
    """
    try:
        members = json.loads(data)
    except ValueError:
        return None
    if not isinstance(members, dict):
        return None
    if event in ("", "message"):
        return {"type": "text", **members}
    if event in _PARKED and not (members.get("runId") and members.get("id")):
        return None
    if event in (*_PARKED, "tool-call", "tool-result", "decision"):
        members = {"toolCallId": members.get("id"), **members}
    return {**members, "type": event}
