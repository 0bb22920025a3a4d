"""Deciding over HTTP: one rule, and each refusal with its code."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.utils import timezone

from agora_agent.models import AccessEntry, AuditEntry, Decision, ToolCall
from tests.api.rows import park, post, signed_in, start
from tests.api.test_doors import is_problem
from tests.support.people import person


def body(call: ToolCall, **extra: Any) -> dict[str, Any]:
    return {"runId": str(call.run_id), "toolCallId": call.call_id, **extra}


def test_the_first_decision_wins_and_is_told_again(alice: Any) -> None:
    call = park(start(alice))
    client = signed_in(alice)
    first = post(
        client, "tool-call/approve", body(call, comment="fine", clientLabel="phone", digest=call.digest)
    )
    assert first.status_code == 200
    assert json.loads(first.content) | {"decidedAt": ""} == {
        "status": "approved",
        "decidedBy": "alice",
        "decidedAt": "",
        "via": "rest",
    }
    again = post(client, "tool-call/approve", body(call))
    assert (again.status_code, again.content) == (200, first.content)
    problem = is_problem(post(client, "tool-call/reject", body(call)), 409, "already_decided")
    assert problem["decision"]["status"] == "approved"
    assert Decision.objects.count() == 1
    call.refresh_from_db()
    assert (call.status, call.via, call.reason) == ("approved", "rest", "fine")


def test_the_door_is_what_the_server_knows(alice: Any) -> None:
    call = park(start(alice))
    post(signed_in(alice), "tool-call/reject", body(call, via="admin", reason="no", clientLabel="admin"))
    decision = Decision.objects.get()
    assert (decision.via, decision.client_label, decision.reason) == ("rest", "admin", "no")
    assert decision.auth_method == "SessionAuthentication"
    assert decision.address == "127.0.0.1"
    assert AuditEntry.objects.get(action="decided").via == "rest"


def test_extra_fields_change_nothing_about_what_runs(alice: Any) -> None:
    call = park(start(alice))
    response = post(
        signed_in(alice), "tool-call/approve", body(call, toolName="wipe", actor="bob", status="executed")
    )
    assert response.status_code == 200
    call.refresh_from_db()
    assert (call.tool_name, call.input) == ("send_mail", {"to": "a"})


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"input": {"to": "evil"}}, "input"),
        ({"remember": True}, "remember"),
        ({"digest": 5}, "digest"),
        ({"digest": "x" * 65}, "digest"),
        ({"round": 0}, "round"),
        ({"round": "x"}, "round"),
        ({"reason": 5}, "reason"),
        ({"reason": "x" * 4097}, "reason"),
        ({"comment": ["x"]}, "comment"),
        ({"clientLabel": "x" * 65}, "clientLabel"),
    ],
)
def test_a_reply_that_is_none_decides_nothing(alice: Any, extra: dict[str, Any], field: str) -> None:
    call = park(start(alice))
    problem = is_problem(post(signed_in(alice), "tool-call/approve", body(call, **extra)), 400, "invalid")
    assert field in problem["errors"]
    call.refresh_from_db()
    assert call.status == "pending_approval"


def test_a_call_must_be_named(alice: Any) -> None:
    assert "toolCallId" in is_problem(post(signed_in(alice), "tool-call/approve", {}), 400)["errors"]


def test_what_was_not_shown_is_not_approved(alice: Any) -> None:
    call = park(start(alice))
    client = signed_in(alice)
    is_problem(post(client, "tool-call/approve", body(call, digest="0" * 64)), 409, "changed")
    is_problem(post(client, "tool-call/approve", body(call, round=2)), 409, "changed")
    assert post(client, "tool-call/approve", body(call, digest=call.digest, round=1)).status_code == 200


def test_a_call_id_that_several_calls_have_needs_its_run(alice: Any) -> None:
    first, second = park(start(alice)), park(start(alice))
    client = signed_in(alice)
    is_problem(post(client, "tool-call/approve", {"toolCallId": "c1"}), 400, "ambiguous")
    assert post(client, "tool-call/approve", body(second)).status_code == 200
    assert post(client, "tool-call/approve", {"toolCallId": "c1", "runId": None}).status_code == 200
    first.refresh_from_db()
    assert first.status == "approved"


def test_a_call_of_a_delegated_run_is_named_by_that_run(alice: Any) -> None:
    run = start(alice)
    call = park(start(alice, parent=run))
    client = signed_in(alice)
    is_problem(post(client, "tool-call/approve", {"runId": str(run.pk), "toolCallId": "c1"}), 404)
    assert post(client, "tool-call/approve", body(call)).status_code == 200


def test_who_asks_does_not_authorise(alice: Any, carol: Any) -> None:
    call = park(start(alice), "wipe")
    is_problem(post(signed_in(alice), "tool-call/approve", body(call)), 403, "forbidden")
    response = post(signed_in(carol), "tool-call/approve", body(call))
    assert json.loads(response.content)["decidedBy"] == "carol"


def test_too_late_is_410_and_an_ended_run_409(alice: Any) -> None:
    client = signed_in(alice)
    late = park(start(alice), expires_at=timezone.now() - dt.timedelta(seconds=1))
    is_problem(post(client, "tool-call/approve", body(late)), 410, "expired")
    over = park(start(alice, status="completed", phase="ended"))
    is_problem(post(client, "tool-call/approve", body(over)), 409, "run_not_active")


def test_nobody_decides_in_somebody_elses_name(alice: Any, carol: Any) -> None:
    call = park(start(alice), "wipe")
    client = signed_in(carol)
    session = client.session
    session["hijack_history"] = [str(alice.pk)]
    session.save()
    is_problem(post(client, "tool-call/approve", body(call)), 403, "impersonated")


def test_an_unknown_outcome_is_settled_by_somebody_else(alice: Any, db: None) -> None:
    gina = person("gina", "agora_agent.settle_unknown")
    call = park(start(alice), status="interrupted", launched_at=timezone.now())
    is_problem(post(signed_in(alice), "tool-call/settle", body(call, outcome="done", reason="seen")), 403)
    client = signed_in(gina)
    for wrong, field in (
        ({}, "outcome"),
        ({"outcome": "perhaps", "reason": "x"}, "outcome"),
        ({"outcome": "done"}, "reason"),
    ):
        assert field in is_problem(post(client, "tool-call/settle", body(call, **wrong)), 400)["errors"]
    response = post(
        client, "tool-call/settle", body(call, outcome="done", output={"sent": 1}, reason="seen in the log")
    )
    assert json.loads(response.content)["status"] == "settled"
    waiting = park(start(alice), call_id="c2")
    is_problem(post(client, "tool-call/settle", body(waiting, outcome="done", reason="x")), 404)


def test_text_that_no_database_holds_is_cleaned(alice: Any) -> None:
    call = park(start(alice))
    response = post(signed_in(alice), "tool-call/reject", body(call, reason="a\u0000b"))
    assert response.status_code == 200
    call.refresh_from_db()
    assert call.reason == "a\u2400b"


MISTAKES: list[dict[str, Any]] = [{}, {"reason": 5}, {"outcome": "perhaps", "digest": ["x"]}]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("verdict", ["approve", "reject", "settle"])
def test_a_strangers_attempt_is_noted_and_learns_nothing(
    alice: Any, bob: Any, verdict: str, mistake: dict[str, Any]
) -> None:
    status = "interrupted" if verdict == "settle" else "pending_approval"
    call = park(start(alice), "wipe", status=status, launched_at=timezone.now())
    right = {"outcome": "done", "reason": "seen"} if verdict == "settle" else {}
    sent = mistake or right
    client = signed_in(bob)
    answers = [
        post(client, f"tool-call/{verdict}", sent | named)
        for named in (
            body(call),
            {"toolCallId": call.call_id},
            {"toolCallId": "no-such-call", "runId": str(call.run_id)},
            {"toolCallId": call.call_id, "runId": "nonsense"},
            {"toolCallId": {"a": 1}},
        )
    ]
    assert len({answer.content for answer in answers}) == 1
    is_problem(answers[0], 404, "not_found")
    noted = list(AccessEntry.objects.order_by("id"))
    assert [entry.action for entry in noted] == ["decision_refused"] * len(answers)
    assert (noted[0].subject_ref, noted[0].via) == (f"call:{call.call_id}", "rest")
    assert noted[0].content == {
        "code": "not_found",
        "verdict": verdict,
        "run": str(call.run_id),
        "by": f"user:{bob.pk}",
        "auth_method": "SessionAuthentication",
        "address": "127.0.0.1",
    }
    call.refresh_from_db()
    assert call.status == status


def test_a_mistake_of_somebody_who_sees_the_call_is_told_and_not_noted(alice: Any) -> None:
    call = park(start(alice))
    is_problem(post(signed_in(alice), "tool-call/approve", body(call, reason=5)), 400, "invalid")
    assert not AccessEntry.objects.exists()


@pytest.mark.parametrize("mistake", [{}, {"reason": 5}])
def test_an_attempt_in_somebody_elses_name_is_noted(alice: Any, carol: Any, mistake: dict[str, Any]) -> None:
    call = park(start(alice), "wipe")
    client = signed_in(carol)
    session = client.session
    session["hijack_history"] = [str(alice.pk)]
    session.save()
    is_problem(post(client, "tool-call/approve", body(call, **mistake)), 403, "impersonated")
    assert AccessEntry.objects.get().content["impersonator"] == f"user:{alice.pk}"
