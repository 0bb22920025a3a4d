"""Many people at one call at the same moment: one decision, one entry, one frame, and clean answers."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from django.db import connection

from agora_agent.exceptions import AlreadyDecided, Expired, RunNotActive
from agora_agent.governance import audit
from agora_agent.governance.decisions import decide, expire_due, settle
from agora_agent.governance.standing import Standing
from agora_agent.models import AgentRun, AuditEntry, Decision, ToolCall
from agora_agent.streaming import frames
from tests.governance.rows import RELEASE, ago, all_at_once, at, grant, park, start

pytestmark = pytest.mark.django_db(transaction=True)


def one_trace(call: ToolCall) -> Decision:
    """The only decision there is, with its one entry and its one frame."""
    decision = Decision.objects.get()
    assert AuditEntry.objects.count() == 1
    batch = frames.read(call.run.root_id)
    assert batch is not None
    assert [frame.event for frame in batch.frames] == ["decision"]
    assert not audit.verify()
    call.refresh_from_db()
    return decision


def test_fifty_people_decide_at_once(people: Any) -> None:
    call = park(start(people.alice), "release")
    voters = [type(people.alice).objects.create_user(f"voter{n}") for n in range(50)]
    for voter in voters:
        grant(voter, RELEASE)
    verdicts: list[Any] = list(itertools.islice(itertools.cycle(["approve", "reject"]), 50))
    results = all_at_once(
        [
            partial(decide, at(voter), call_id="c1", run_id=call.run_id, verdict=verdict)
            for voter, verdict in zip(voters, verdicts, strict=True)
        ]
    )
    decision = one_trace(call)
    [winner] = [place for place, result in enumerate(results) if isinstance(result, Standing)]
    assert (decision.principal, decision.verdict) == (voters[winner], verdicts[winner])
    assert call.status == {"approve": "approved", "reject": "rejected"}[verdicts[winner]]
    losers = [result for place, result in enumerate(results) if place != winner]
    assert {type(result) for result in losers} == {AlreadyDecided}
    assert all(error.details["decision"] == results[winner].as_wire() for error in losers)


def test_one_impatient_person_clicks_fifty_times(people: Any) -> None:
    call = park(start(people.alice), "note")
    results = all_at_once([partial(decide, at(people.alice), call_id="c1", verdict="approve")] * 50)
    one_trace(call)
    assert sorted(result.repeated for result in results) == [False] + [True] * 49
    assert len({result.decided_at for result in results}) == 1


def test_decisions_about_many_calls_of_one_run_do_not_lock_each_other_out(people: Any) -> None:
    run = start(people.alice)
    calls = [park(run, "note", f"c{n}") for n in range(12)]
    results = all_at_once(
        [partial(decide, at(people.alice), call_id=c.call_id, verdict="approve") for c in calls]
    )
    assert all(isinstance(result, Standing) for result in results)
    batch = frames.read(run.pk)
    assert batch is not None
    assert [frame.seq for frame in batch.frames] == list(range(1, 13))
    assert not audit.verify()


@pytest.mark.parametrize("milliseconds", [0, 20, 50, 100, 200, 400])
def test_approvals_and_sweeps_around_the_deadline(people: Any, milliseconds: int) -> None:
    deadline = ago(milliseconds=-milliseconds)
    call = park(start(people.alice), "note", expires_at=deadline)
    jobs: list[Any] = [expire_due, partial(decide, at(people.alice), call_id="c1", verdict="approve")] * 5
    results = all_at_once(jobs)
    decision = one_trace(call)
    if decision.verdict == "approve":
        assert (call.status, decision.created_at < deadline, sum(results[::2])) == ("approved", True, 0)
        assert all(isinstance(result, Standing) for result in results[1::2])
    else:
        assert (call.status, decision.created_at >= deadline) == ("expired", True)
        assert all(isinstance(result, Expired) for result in results[1::2])
        assert sum(results[::2]) <= 1


@pytest.mark.parametrize("attempt", range(5))
def test_an_approval_and_the_end_of_the_run_at_the_same_moment(people: Any, attempt: int) -> None:
    call = park(start(people.alice), "note")

    def end() -> int:
        return AgentRun.objects.filter(pk=call.run_id, status="running").update(status="cancelled")

    ended, decided = all_at_once([end, partial(decide, at(people.alice), call_id="c1", verdict="approve")])
    assert ended == 1
    if isinstance(decided, Standing):
        one_trace(call)
    else:
        assert isinstance(decided, RunNotActive)
        assert not Decision.objects.exists()


def test_one_settlement_for_one_launch(people: Any) -> None:
    call = park(start(people.alice), "release", status="interrupted", launched_at=ago(minutes=1))
    outcomes: list[Any] = ["done", "failed", "again"]
    people_and_outcomes = itertools.product([people.carol, people.felix, people.gina, people.root], outcomes)
    results = all_at_once(
        [partial(settle, at(who), call_id="c1", outcome=outcome) for who, outcome in people_and_outcomes]
    )
    assert [type(result) for result in results].count(Standing) == 1
    assert Decision.objects.count() == AuditEntry.objects.count() == 1
    call.refresh_from_db()
    assert call.status == "interrupted"


def test_a_deferred_transaction_decides_as_well(people: Any) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite defers the write lock")
    call = park(start(people.alice), "release")
    voters = [people.carol, people.felix, people.root] * 5

    def deferred(voter: Any) -> Standing:
        connection.ensure_connection()
        connection.transaction_mode = None
        return decide(at(voter), call_id="c1", verdict="approve")

    results = all_at_once([partial(deferred, voter) for voter in voters])
    one_trace(call)
    assert all(isinstance(result, Standing | AlreadyDecided) for result in results)
