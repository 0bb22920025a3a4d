"""Starting turns and reading what came of them, for tests of either runner."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from agora_agent.models import AgentRun, Frame, Stream
from agora_agent.turn import runner
from agora_agent.turn.runner import AgentRunInput

DEADLINE_SECONDS = 20.0


def start(user: Any, message: str = "hello", *, agent: str = "desk", **options: Any) -> uuid.UUID:
    """Start a turn with the runner that the settings name."""
    return runner.get().start(AgentRunInput(agent=agent, message=message, user=user, **options))


def until(condition: Callable[[], Any], what: str = "condition") -> Any:
    """Poll until ``condition`` gives something true; what it gives."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"timed out waiting for {what}")


def ended(run_id: uuid.UUID) -> AgentRun:
    """The run once it has ended."""

    def look() -> AgentRun | None:
        run = AgentRun.objects.get(pk=run_id)
        return run if run.is_terminal else None

    return until(look, f"the end of run {run_id}")


def pending(run_id: uuid.UUID, count: int = 1) -> list[Any]:
    """The run's calls that wait for a person, once there are ``count`` of them."""

    def look() -> list[Any]:
        run = AgentRun.objects.get(pk=run_id)
        assert not run.is_terminal, f"{run.status} {run.error_code} {run.error_detail}"
        calls = list(run.tool_calls.filter(status="pending_approval").order_by("step", "index"))
        return calls if len(calls) >= count else []

    return until(look, f"{count} pending calls")


def events(run_id: uuid.UUID) -> list[tuple[str, dict[str, Any]]]:
    """The frames of the run's stream, each as (event, data); numbers are checked to be 1, 2, 3 …"""
    rows = list(Frame.objects.filter(stream_id=run_id).order_by("seq").values_list("seq", "event", "data"))
    assert [seq for seq, _, _ in rows] == list(range(1, len(rows) + 1))
    return [(event, data) for _, event, data in rows]


def text_of(run_id: uuid.UUID) -> str:
    """What a reader shows as the answer, rewinds honoured."""
    parts: list[tuple[int, str]] = []
    rows = Frame.objects.filter(stream_id=run_id).order_by("seq").values_list("seq", "event", "data")
    for seq, event, data in rows:
        if event == "":
            parts.append((seq, data["delta"]))
        elif event == "rewind":
            parts = [part for part in parts if part[0] <= data["after"]]
    return "".join(text for _, text in parts)


def terminal(run_id: uuid.UUID) -> str:
    """The event that ended the stream; empty while it is open."""
    return Stream.objects.values_list("terminal_event", flat=True).get(pk=run_id)
