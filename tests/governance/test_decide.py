from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from agora_agent.exceptions import (
    AgoraError,
    AlreadyDecided,
    Ambiguous,
    Changed,
    Expired,
    Forbidden,
    InvalidInput,
    NotVisible,
    RunNotActive,
    WrongReply,
)
from agora_agent.governance.decisions import decide
from agora_agent.governance.principal import Impersonated, acting
from agora_agent.models import AccessEntry, AgentRun, AuditEntry, Decision, ToolCall
from agora_agent.plain import utc
from agora_agent.streaming import frames
from tests.governance.rows import RELEASE, ago, at, grant, park, start

pytestmark = pytest.mark.django_db

#: person -> what approve and reject answer while the call waits.
CONFIRM = {
    "alice": (None, None),
    "bob": (NotVisible, NotVisible),
    "carol": (NotVisible, NotVisible),
    "dave": (Forbidden, Forbidden),
    "erin": (NotVisible, NotVisible),
    "felix": (Forbidden, None),
    "gina": (NotVisible, NotVisible),
    "root": (Forbidden, None),
}
AUTHORISE = {
    "alice": (Forbidden, Forbidden),
    "bob": (NotVisible, NotVisible),
    "carol": (None, None),
    "dave": (Forbidden, Forbidden),
    "erin": (NotVisible, NotVisible),
    "felix": (None, None),
    "gina": (NotVisible, NotVisible),
    "root": (None, None),
}
GROUP = AUTHORISE | {"carol": (NotVisible, NotVisible), "erin": (None, None)}
TOOLS = {"note": CONFIRM, "release": AUTHORISE, "close": GROUP}
CASES = [
    (tool, person, verdict, answers[place])
    for tool, matrix in TOOLS.items()
    for person, answers in matrix.items()
    for place, verdict in enumerate(("approve", "reject"))
]
ENTITLED = {"note": "alice", "release": "carol", "close": "erin"}


def untouched(call: ToolCall) -> bool:
    call.refresh_from_db()
    waits = call.status == ToolCall.Status.PENDING_APPROVAL and call.decided_at is None
    silent = not frames.read(call.run.root_id).frames  # type: ignore[union-attr]
    return waits and silent and not call.decisions.exists() and not AuditEntry.objects.exists()


@pytest.mark.parametrize(("tool", "person", "verdict", "refusal"), CASES)
def test_who_may_say_what_while_a_call_waits(
    people: Any, tool: str, person: str, verdict: Any, refusal: type[AgoraError] | None
) -> None:
    call = park(start(people.alice), tool)
    principal = at(getattr(people, person))
    if refusal is None:
        assert (
            decide(principal, call_id="c1", verdict=verdict).status
            == f"{verdict}{'d' if verdict[-1] == 'e' else 'ed'}"
        )
        return
    for named in ({}, {"run_id": call.run_id}, {"run_id": str(call.run_id)}):
        with pytest.raises(refusal) as refused:
            decide(principal, call_id="c1", verdict=verdict, **named)
        assert refused.type is refusal
    assert untouched(call)
    entry = AccessEntry.objects.first()
    assert entry is not None
    assert entry.action == "decision_refused"
    assert entry.content["by"] == principal.ref
    assert entry.content["code"] == refusal.code


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("verdict", ["approve", "reject"])
@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        ({"run": {"status": "cancelled"}}, RunNotActive),
        ({"run": {"status": "failed"}}, RunNotActive),
        ({"run": {"cancel_requested_at": ago(seconds=1)}}, RunNotActive),
        ({"call": {"status": "cancelled"}}, RunNotActive),
        ({"call": {"status": "expired"}}, Expired),
        ({"call": {"status": "expired"}, "run": {"status": "completed"}}, Expired),
        ({"call": {"expires_at": ago(seconds=1)}}, Expired),
        ({"call": {"expires_at": ago(seconds=1)}, "run": {"status": "cancelled"}}, RunNotActive),
    ],
)
def test_what_the_entitled_hear_when_it_is_too_late(
    people: Any, tool: str, verdict: Any, state: dict[str, Any], refusal: type[AgoraError]
) -> None:
    call = park(start(people.alice, **state.get("run", {})), tool, **state.get("call", {}))
    with pytest.raises(refusal):
        decide(at(getattr(people, ENTITLED[tool])), call_id="c1", run_id=call.run_id, verdict=verdict)
    call.refresh_from_db()
    assert call.status not in ("approved", "rejected")
    assert not call.decisions.exclude(verdict="expire").exists()


@pytest.mark.parametrize("state", [{}, {"status": "cancelled"}])
@pytest.mark.parametrize("fields", [{}, {"expires_at": ago(seconds=1)}, {"status": "approved"}])
def test_strangers_hear_the_same_whatever_the_state(people: Any, state: Any, fields: Any) -> None:
    call = park(start(people.alice, **state), "release", **fields)
    with pytest.raises(NotVisible) as refused:
        decide(at(people.bob), call_id="c1", run_id=call.run_id, verdict="approve", reason="x" * 5000)
    with pytest.raises(NotVisible) as unknown:
        decide(at(people.bob), call_id="nothing", run_id=call.run_id, verdict="approve")
    assert str(refused.value) == str(unknown.value)
    assert not refused.value.details


def test_a_decision_is_stored_told_and_recorded_together(people: Any) -> None:
    call = park(start(people.alice), "release")
    principal = at(people.carol, "rest", auth_method="session", address="192.0.2.7")
    standing = decide(
        principal, call_id="c1", verdict="approve", reason="fine", digest=call.digest, client_label="phone"
    )

    call.refresh_from_db()
    assert (call.status, call.decided_by, call.via, call.reason) == ("approved", people.carol, "rest", "fine")
    assert call.decided_ref == f"user:{people.carol.pk}"
    assert standing.as_wire() == {
        "status": "approved",
        "decidedBy": "carol",
        "decidedAt": utc(call.decided_at),
        "via": "rest",
    }
    decision = Decision.objects.get()
    assert (decision.verdict, decision.principal, decision.digest) == ("approve", people.carol, call.digest)
    assert (decision.auth_method, decision.address, decision.client_label) == (
        "session",
        "192.0.2.7",
        "phone",
    )
    entry = AuditEntry.objects.get()
    assert (entry.chain, entry.action, entry.via) == (str(call.run_id), "decided", "rest")
    assert entry.subject_ref == f"call:{call.pk}"
    assert entry.content == {
        "decision": str(decision.pk),
        "verdict": "approve",
        "round": 1,
        "digest": call.digest,
        "by": principal.ref,
        "auth_method": "session",
        "address": "192.0.2.7",
    }
    batch = frames.read(call.run.root_id)
    assert batch is not None
    [frame] = batch.frames
    assert frame.event == "decision"
    assert frame.data == {
        "runId": str(call.run_id),
        "id": "c1",
        "status": "approved",
        "decidedBy": "carol",
        "via": "rest",
        "reason": "fine",
        "round": 1,
    }


def test_a_childs_decision_is_told_on_the_top_level_stream(people: Any) -> None:
    parent = start(people.alice)
    child = start(people.alice, parent=parent)
    park(child, "note")
    with pytest.raises(NotVisible):
        decide(at(people.alice), call_id="c1", run_id=parent.pk, verdict="approve")
    decide(at(people.alice), call_id="c1", verdict="approve")
    batch = frames.read(parent.pk)
    assert batch is not None
    assert [frame.data["runId"] for frame in batch.frames] == [str(child.pk)]


def test_the_same_again_by_the_same_person_has_no_second_effect(people: Any) -> None:
    run = start(people.alice)
    park(run, "note")
    first = decide(at(people.alice, "rest"), call_id="c1", verdict="approve", reason="yes")
    AgentRun.objects.filter(pk=run.pk).update(
        status="completed"
    )  # the run may be over by the time of a retry
    again = decide(at(people.alice, "admin"), call_id="c1", verdict="approve")
    assert again.repeated
    assert again.as_wire() == first.as_wire()
    assert Decision.objects.count() == AuditEntry.objects.count() == 1
    batch = frames.read(run.pk)
    assert batch is not None
    assert len(batch.frames) == 1


@pytest.mark.parametrize(
    ("person", "verdict"), [("carol", "reject"), ("felix", "approve"), ("felix", "reject")]
)
def test_a_second_opinion_gets_the_standing_decision(people: Any, person: str, verdict: Any) -> None:
    call = park(start(people.alice), "release")
    first = decide(at(people.carol), call_id="c1", verdict="approve")
    with pytest.raises(AlreadyDecided) as refused:
        decide(at(getattr(people, person)), call_id="c1", run_id=call.run_id, verdict=verdict)
    assert refused.value.details["decision"] == first.as_wire()
    assert Decision.objects.count() == 1


def test_an_overdue_call_expires_when_somebody_comes_too_late(people: Any) -> None:
    call = park(start(people.alice), "note", expires_at=ago(seconds=1))
    with pytest.raises(Expired):
        decide(at(people.alice), call_id="c1", verdict="approve")
    call.refresh_from_db()
    assert (call.status, call.decided_by, call.via) == ("expired", None, "policy")
    decision = Decision.objects.get()
    assert (decision.verdict, decision.principal, decision.via) == ("expire", None, "policy")
    assert [entry.action for entry in AuditEntry.objects.all()] == ["expired"]


def test_a_deadline_ahead_does_not_expire(people: Any) -> None:
    park(start(people.alice), "note", expires_at=timezone.now() + dt.timedelta(minutes=1))
    assert decide(at(people.alice), call_id="c1", verdict="approve").status == "approved"


@pytest.mark.parametrize(
    "reply",
    [
        {"verdict": "answer", "answers": {"q": ["a"]}},
        {"verdict": "skip"},
        {"verdict": "approve", "answers": {}},
    ],
)
def test_answers_do_not_fit_an_approval(people: Any, reply: Any) -> None:
    call = park(start(people.alice), "note")
    with pytest.raises(WrongReply):
        decide(at(people.alice), call_id="c1", **reply)
    assert untouched(call)


def test_a_call_that_nobody_was_asked_about_takes_no_decision(people: Any) -> None:
    call = park(start(people.alice), "look")
    with pytest.raises(WrongReply):
        decide(at(people.alice), call_id="c1", run_id=call.run_id, verdict="approve")


@pytest.mark.parametrize("shown", [{"digest": "0" * 64}, {"digest": ""}, {"round": 2}])
def test_what_was_shown_must_be_what_waits(people: Any, shown: Any) -> None:
    call = park(start(people.alice), "note")
    with pytest.raises(Changed):
        decide(at(people.alice), call_id="c1", verdict="approve", **shown)
    assert untouched(call)


def test_a_call_that_asks_again_is_decided_again(people: Any) -> None:
    call = park(start(people.alice), "note")
    first = decide(at(people.alice), call_id="c1", verdict="approve")
    ToolCall.objects.filter(pk=call.pk).update(
        status="pending_approval", round=2, decided_at=None, decided_by=None
    )
    second = decide(at(people.alice), call_id="c1", verdict="approve", round=2)
    assert not second.repeated
    assert second.decided_at > first.decided_at
    assert list(Decision.objects.order_by("created_at").values_list("round", flat=True)) == [1, 2]


@pytest.mark.parametrize("reason", ["wrong person, use b", 'quotes " and \n lines 🙂', "x" * 4096])
def test_the_reason_is_kept_to_the_letter(people: Any, reason: str) -> None:
    call = park(start(people.alice), "note")
    decide(at(people.alice), call_id="c1", verdict="reject", reason=reason)
    call.refresh_from_db()
    assert call.reason == Decision.objects.get().reason == reason


def test_text_that_databases_cannot_hold_is_shown_in_its_place(people: Any) -> None:
    call = park(start(people.alice), "note")
    decide(at(people.alice), call_id="c1", verdict="reject", reason="a\x00b\ud800")
    call.refresh_from_db()
    assert call.reason == "a\u2400b\ufffd"


@pytest.mark.parametrize(
    "fields", [{"reason": "x" * 4097}, {"reason": 7}, {"client_label": "x" * 65}, {"verdict": "maybe"}]
)
def test_what_is_too_long_or_no_text_is_refused(people: Any, fields: Any) -> None:
    call = park(start(people.alice), "note")
    with pytest.raises(InvalidInput):
        decide(at(people.alice), **{"call_id": "c1", "verdict": "reject", **fields})
    assert untouched(call)


# -- which call is meant -------------------------------------------------------------------------------------------


def test_one_id_in_two_waiting_runs_needs_the_run(people: Any) -> None:
    first, second = park(start(people.alice), "note"), park(start(people.alice), "note")
    with pytest.raises(Ambiguous):
        decide(at(people.alice), call_id="c1", verdict="approve")
    assert untouched(first)
    decide(at(people.alice), call_id="c1", run_id=second.run_id, verdict="approve")
    assert decide(at(people.alice), call_id="c1", verdict="reject").status == "rejected"
    first.refresh_from_db()
    assert first.status == "rejected"


def test_other_peoples_calls_of_the_same_id_are_not_in_the_way(people: Any) -> None:
    theirs, mine = park(start(people.bob), "note"), park(start(people.alice), "note")
    decide(at(people.alice), call_id="c1", verdict="approve")
    mine.refresh_from_db()
    assert mine.status == "approved"
    theirs.refresh_from_db()
    assert theirs.status == "pending_approval"
    grant(people.bob, "agora_agent.view_all_runs")
    park(start(people.alice), "note")
    assert decide(at(people.bob), call_id="c1", verdict="reject").status == "rejected"
    theirs.refresh_from_db()
    assert theirs.status == "rejected"


def test_a_run_id_does_not_widen_what_one_sees(people: Any) -> None:
    theirs = park(start(people.bob), "note")
    mine = start(people.alice)
    for run_id in (theirs.run_id, mine.pk):
        with pytest.raises(NotVisible):
            decide(at(people.alice), call_id="c1", run_id=run_id, verdict="approve")
    assert untouched(theirs)


@pytest.mark.parametrize(
    "run_id", ["", "x", "1", 7, [], {}, "urn:uuid:" + "0" * 32, "braces", "\x00", b"0" * 16]
)
def test_malformed_runs_are_unknown(people: Any, run_id: Any) -> None:
    call = park(start(people.alice), "note")
    if run_id == "braces":
        run_id = f"{{{call.run_id}}}"
    with pytest.raises(NotVisible):
        decide(at(people.alice), call_id="c1", run_id=run_id, verdict="approve")


@pytest.mark.parametrize(
    "call_id", ["", "C1", "c1 ", " c1", "c1\n", "c1\x00", "x" * 65, "ç1", 7, None, ["c1"], "c\ud800"]
)
def test_ids_are_compared_to_the_letter(people: Any, call_id: Any) -> None:
    call = park(start(people.alice), "note")
    with pytest.raises(NotVisible):
        decide(at(people.alice), call_id=call_id, verdict="approve")
    assert untouched(call)


def test_ids_that_differ_in_case_are_two_calls(people: Any) -> None:
    run = start(people.alice)
    lower, upper = park(run, "note", "call_a"), park(run, "note", "call_A")
    decide(at(people.alice), call_id="call_A", verdict="approve")
    upper.refresh_from_db()
    assert upper.status == "approved"
    lower.refresh_from_db()
    assert lower.status == "pending_approval"


def test_another_tenant_sees_nothing(people: Any) -> None:
    call = park(start(people.alice, tenant="north"), "release")
    for person in (people.alice, people.carol, people.root):
        with pytest.raises(NotVisible):
            decide(at(person), call_id="c1", run_id=call.run_id, verdict="approve")
    assert decide(at(people.carol, tenant="north"), call_id="c1", verdict="approve").status == "approved"


# -- who is a person ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["release", "close"])
@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_no_requester_authorises_not_even_root(people: Any, tool: str, verdict: Any) -> None:
    grant(people.bob, RELEASE)
    run = start(people.root, requesters=[f"user:{people.root.pk}", f"user:{people.bob.pk}"])
    call = park(run, tool)
    for person in (people.root, people.bob):
        if person is people.bob and tool == "close":
            continue
        with pytest.raises(Forbidden):
            decide(at(person), call_id="c1", run_id=run.pk, verdict=verdict)
    assert untouched(call)


def test_one_who_started_the_run_for_somebody_counts_as_a_requester_without_being_named(people: Any) -> None:
    run = start(people.carol, requesters=[])
    call = park(run, "release")
    with pytest.raises(Forbidden):
        decide(at(people.carol), call_id="c1", verdict="approve")
    assert untouched(call)


def test_nobody_decides_in_somebody_elses_name(people: Any) -> None:
    call = park(start(people.alice), "release")
    principal = at(people.carol, "rest", impersonator=people.root)
    with pytest.raises(Impersonated) as refused:
        decide(principal, call_id="c1", verdict="approve")
    assert (refused.value.status_code, refused.value.code) == (403, "impersonated")
    assert untouched(call)
    entry = AccessEntry.objects.get()
    assert entry.content["by"] == f"user:{people.carol.pk}"
    assert entry.content["impersonator"] == f"user:{people.root.pk}"


def test_an_impersonated_stranger_learns_nothing(people: Any) -> None:
    park(start(people.alice), "release")
    with pytest.raises(NotVisible):
        decide(at(people.bob, impersonator=people.root), call_id="c1", verdict="approve")


def test_a_deactivated_account_does_not_decide(people: Any) -> None:
    call = park(start(people.alice), "release")
    stale = type(people.carol).objects.get(pk=people.carol.pk)
    assert stale.has_perm(RELEASE)
    type(people.carol).objects.filter(pk=people.carol.pk).update(is_active=False)
    with pytest.raises(Forbidden):
        decide(at(stale), call_id="c1", verdict="approve")
    assert untouched(call)


def test_a_right_that_was_taken_away_is_gone_at_once(people: Any) -> None:
    call = park(start(people.alice), "release")
    assert people.carol.has_perm(RELEASE)  # and the object remembers it
    people.carol.user_permissions.clear()
    with pytest.raises(NotVisible):
        decide(at(people.carol), call_id="c1", verdict="approve")
    assert untouched(call)


def test_anonymous_and_deleted_users_do_not_decide(people: Any) -> None:
    call = park(start(people.alice), "note")
    gone = at(people.bob)
    type(people.bob).objects.filter(pk=people.bob.pk).delete()
    for principal in (at(AnonymousUser()), gone):
        with pytest.raises(Forbidden):
            decide(principal, call_id="c1", verdict="approve")
    assert untouched(call)


def test_a_run_whose_owner_is_gone_is_nobodys(people: Any) -> None:
    call = park(start(people.alice), "note")
    type(people.alice).objects.filter(pk=people.alice.pk).delete()
    with pytest.raises(Forbidden):
        decide(at(people.alice), call_id="c1", run_id=call.run_id, verdict="approve")
    for person in (people.bob, people.carol):
        with pytest.raises(NotVisible):
            decide(at(person), call_id="c1", run_id=call.run_id, verdict="approve")


@pytest.mark.parametrize(
    "whom", [lambda people: people.alice, lambda people: people.alice.pk, lambda people: "alice"]
)
def test_only_what_a_door_has_made_decides(people: Any, whom: Any) -> None:
    call = park(start(people.alice), "note")
    with pytest.raises(TypeError):
        decide(whom(people), call_id="c1", verdict="approve")
    assert untouched(call)


def test_a_tool_cannot_decide(people: Any) -> None:
    call = park(start(people.alice), "note")
    with acting(), acting():
        pass
    with acting(), pytest.raises(Forbidden):
        decide(at(people.alice), call_id="c1", verdict="approve")
    assert untouched(call)
    assert decide(at(people.alice), call_id="c1", verdict="approve").status == "approved"
