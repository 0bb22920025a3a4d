from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agora_agent.exceptions import (
    AgoraError,
    AlreadyDecided,
    Forbidden,
    InvalidInput,
    NotVisible,
    RunNotActive,
    WrongReply,
)
from agora_agent.governance.decisions import settle
from agora_agent.governance.principal import Impersonated
from agora_agent.models import AuditEntry, Decision, ToolCall
from agora_agent.streaming import frames
from tests.governance.rows import ago, at, grant, park, start

pytestmark = pytest.mark.django_db


def interrupted(actor: Any, tool: str = "release", **fields: Any) -> ToolCall:
    return park(start(actor, **fields), tool, status="interrupted", launched_at=ago(minutes=1))


@pytest.mark.parametrize(
    ("tool", "person", "refusal"),
    [
        ("note", "alice", Forbidden),
        ("note", "bob", NotVisible),
        ("note", "carol", NotVisible),
        ("note", "dave", Forbidden),
        ("note", "felix", Forbidden),
        ("note", "gina", None),
        ("note", "root", None),
        ("release", "alice", Forbidden),
        ("release", "bob", NotVisible),
        ("release", "carol", None),
        ("release", "dave", Forbidden),
        ("release", "felix", None),
        ("release", "gina", None),
    ],
)
def test_who_may_say_what_became_of_a_call(
    people: Any, tool: str, person: str, refusal: type[AgoraError] | None
) -> None:
    call = interrupted(people.alice, tool)
    if refusal is None:
        assert settle(at(getattr(people, person)), call_id="c1", outcome="done").status == "settled"
        return
    with pytest.raises(refusal):
        settle(at(getattr(people, person)), call_id="c1", run_id=call.run_id, outcome="done")
    assert not Decision.objects.exists()


@pytest.mark.parametrize("right", ["agora_agent.settle_unknown", "agora_agent.decide_any_toolcall"])
def test_a_requester_settles_nothing(people: Any, right: str) -> None:
    grant(people.alice, right)
    interrupted(people.alice)
    with pytest.raises(Forbidden):
        settle(at(people.alice), call_id="c1", outcome="done")


def test_a_settlement_is_stored_and_leaves_the_call_to_its_turn(people: Any) -> None:
    call = interrupted(people.alice)
    settle(at(people.gina, "rest"), call_id="c1", outcome="done", output={"paid": 5}, reason="bank says so")
    decision = Decision.objects.get()
    assert (decision.verdict, decision.is_outcome, decision.reason) == ("settle", False, "bank says so")
    assert decision.reply == {"outcome": "done", "output": {"paid": 5}}
    assert AuditEntry.objects.get().action == "settled_unknown"
    call.refresh_from_db()
    assert (call.status, call.output, call.decided_by) == ("interrupted", None, None)
    batch = frames.read(call.run.root_id)
    assert batch is not None
    assert not batch.frames


def test_only_the_first_settlement_stands(people: Any) -> None:
    interrupted(people.alice)
    first = settle(at(people.gina), call_id="c1", outcome="failed")
    assert settle(at(people.gina), call_id="c1", outcome="failed").repeated
    for person, outcome in ((people.gina, "again"), (people.carol, "failed")):
        with pytest.raises(AlreadyDecided) as refused:
            settle(at(person), call_id="c1", outcome=outcome)
        assert refused.value.details["decision"] == first.as_wire()


def test_each_launch_can_be_settled(people: Any) -> None:
    call = interrupted(people.alice)
    first = settle(at(people.gina), call_id="c1", outcome="again")
    ToolCall.objects.filter(pk=call.pk).update(launched_at=first.decided_at + timedelta(microseconds=1))
    settle(at(people.gina), call_id="c1", outcome="again")
    assert list(Decision.objects.order_by("created_at").values_list("round", flat=True)) == [1, 2]


@pytest.mark.parametrize(
    "status", ["pending_approval", "approved", "executing", "executed", "rejected", "failed"]
)
def test_only_an_unknown_outcome_is_settled(people: Any, status: str) -> None:
    call = park(start(people.alice), "release", status=status)
    with pytest.raises(WrongReply):
        settle(at(people.gina if status == "interrupted" else people.carol), call_id="c1", outcome="done")
    assert not call.decisions.exists()


def test_the_end_of_the_run_ends_it(people: Any) -> None:
    interrupted(people.alice, status="cancelled")
    with pytest.raises(RunNotActive):
        settle(at(people.gina), call_id="c1", outcome="again")


@pytest.mark.parametrize(
    "said", [{"outcome": "maybe"}, {"outcome": "again", "output": 1}, {"outcome": "done", "output": {1}}]
)
def test_what_makes_no_sense_is_refused(people: Any, said: Any) -> None:
    interrupted(people.alice)
    with pytest.raises(InvalidInput):
        settle(at(people.gina), call_id="c1", **said)
    assert not Decision.objects.exists()


def test_nobody_settles_in_somebody_elses_name(people: Any) -> None:
    interrupted(people.alice)
    with pytest.raises(Impersonated):
        settle(at(people.gina, impersonator=people.root), call_id="c1", outcome="done")
