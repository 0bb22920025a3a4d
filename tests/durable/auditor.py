"""What must hold whenever no transaction of the engine is open."""

from __future__ import annotations

from collections import Counter

from agora_agent.durable.models import Journal, Run, RunBody, Signal, Task


def audit() -> None:
    """Check every row of the engine's tables against the invariants."""
    runs = {run.id: run for run in Run.objects.all()}
    journal = list(Journal.objects.all())
    tasks = list(Task.objects.all())
    signals = list(Signal.objects.all())

    places = Counter((entry.run_id, entry.pos) for entry in journal)
    assert [place for place, count in places.items() if count > 1] == [], "a position is recorded twice"
    assert set(runs) == set(RunBody.objects.values_list("run_id", flat=True))
    for row in (*journal, *tasks, *signals):
        assert row.run_id in runs, "a row belongs to no run"
    for entry in journal:
        assert entry.epoch <= runs[entry.run_id].epoch, "a row is newer than its run's claim"

    recorded = {(entry.run_id, entry.pos): entry for entry in journal}
    consumed = {(signal.run_id, signal.consumed_pos) for signal in signals if signal.consumed_pos}
    waits = {place for place, entry in recorded.items() if entry.kind == "signal"}
    assert consumed == waits, "a consumed signal has no journal row, or the reverse"
    for task in tasks:
        entry = recorded.get((task.run_id, task.pos))
        if task.status in ("done", "in_doubt") and not task.late:
            assert entry is not None, "a task's result was not recorded"
            assert entry.payload == task.result
        else:
            assert entry is None, "the journal has a result of a task that has none"

    for run in runs.values():
        mine = [task for task in tasks if task.run_id == run.id]
        still_open = [task for task in mine if task.status in ("queued", "running")]
        if run.is_terminal:
            assert run.pending_tasks == 0
            assert [task for task in mine if task.status == "queued"] == []
            assert run.finished_at is not None
            assert run.lease_until is None
            if run.parent_id:
                told = [s for s in signals if (s.run_id, s.key) == (run.parent_id, f"child:{run.id}")]
                parent = runs[run.parent_id]
                assert len(told) == 1 or (parent.is_terminal and not told), "the parent was not told once"
        else:
            assert run.pending_tasks == len(still_open), "open tasks are miscounted"
        if run.status == "suspended":
            assert run.owner == ""
            if run.wait_kind == "tasks":
                assert still_open, "parked on tasks that are not open"
            else:
                unread = [s for s in signals if (s.run_id, s.key) == (run.id, run.wait_key)]
                assert [s for s in unread if not s.consumed_pos] == [], "parked on a signal that is there"
