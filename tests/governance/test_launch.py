from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import override_settings

from agora_agent import codec
from agora_agent.agents.agent import Agent, Persona
from agora_agent.agents.registry import clear, find_tool, register
from agora_agent.governance.decisions import decide, settle
from agora_agent.governance.launch import LaunchRefused, gate, precheck
from agora_agent.models import AgentRun, AuditEntry, Decision, ToolCall
from tests.governance.rows import ago, at, grant, park, start

pytestmark = pytest.mark.django_db
PLAYGROUND = "agora_agent.use_playground"


def launch(call: ToolCall, identity: str | None = None) -> ToolCall:
    with transaction.atomic():
        return gate(call.pk, identity=call.identity if identity is None else identity)


def refusal(call: ToolCall, identity: str | None = None) -> str:
    """The code; nothing was launched."""
    before = ToolCall.objects.values_list("status", "launched_at").get(pk=call.pk)
    with pytest.raises(LaunchRefused) as refused:
        launch(call, identity)
    assert ToolCall.objects.values_list("status", "launched_at").get(pk=call.pk) == before
    assert not AuditEntry.objects.filter(action="launched").exists()
    return refused.value.code


def approved(actor: Any, approver: Any, tool: str = "release") -> ToolCall:
    call = park(start(actor), tool)
    decide(at(approver), call_id="c1", run_id=call.run_id, verdict="approve")
    call.refresh_from_db()
    return call


@pytest.mark.parametrize(("tool", "approver"), [("note", "alice"), ("release", "carol"), ("close", "erin")])
def test_what_was_approved_is_launched_once_and_recorded(people: Any, tool: str, approver: str) -> None:
    call = approved(people.alice, getattr(people, approver), tool)
    launched = launch(call)
    call.refresh_from_db()
    assert (call.status, launched.status) == ("executing", "executing")
    assert call.launched_at == launched.launched_at
    assert launched.input == {"to": "a"}
    entry = AuditEntry.objects.get(action="launched")
    assert entry.content == {"digest": call.digest, "decision": str(Decision.objects.get().pk)}


def test_an_action_that_may_run_only_once_is_not_launched_twice(people: Any) -> None:
    call = approved(people.alice, people.alice, "note")
    launch(call)
    AuditEntry.objects.filter(action="launched")._raw_delete("default")  # type: ignore[attr-defined]
    assert refusal(call) == "withdrawn"


def test_an_idempotent_action_is_launched_again_through_the_same_gate(people: Any) -> None:
    call = approved(people.alice, people.erin, "close")
    launch(call)
    assert launch(call).status == "executing"
    people.erin.groups.clear()
    with pytest.raises(LaunchRefused):
        launch(call)


def test_a_read_is_launched_unasked_and_unrecorded(people: Any) -> None:
    call = park(start(people.alice), "look")
    assert launch(call).status == "auto_executed"
    assert launch(call).status == "auto_executed"
    call.refresh_from_db()
    assert call.launched_at is not None
    assert not AuditEntry.objects.exists()


def test_an_action_that_the_policy_let_through_says_so(people: Any) -> None:
    call = park(start(people.alice), "note", status="auto_executed", tier="")
    assert launch(call).status == "executing"
    assert AuditEntry.objects.get().content == {"digest": call.digest, "policy": True}


@pytest.mark.parametrize(
    "status", ["pending_approval", "rejected", "expired", "cancelled", "executed", "failed"]
)
def test_what_is_not_approved_does_not_run(people: Any, status: str) -> None:
    assert refusal(park(start(people.alice), "release", status=status)) == "withdrawn"


@pytest.mark.parametrize("status", ["approved", "executing"])
@pytest.mark.parametrize("tool", ["release", "close"])
def test_a_status_without_a_decision_is_no_approval(people: Any, tool: str, status: str) -> None:
    call = park(start(people.alice), tool, status=status, decided_by=people.carol, decided_at=ago(seconds=1))
    assert refusal(call) == "withdrawn"


def test_a_rejection_is_no_approval_whatever_the_row_says(people: Any) -> None:
    call = park(start(people.alice), "release")
    decide(at(people.carol), call_id="c1", verdict="reject")
    assert refusal(call) == "withdrawn"
    ToolCall.objects.filter(pk=call.pk).update(status="approved")
    assert refusal(call) == "withdrawn"


def test_an_approval_of_an_earlier_round_is_none(people: Any) -> None:
    call = approved(people.alice, people.carol)
    ToolCall.objects.filter(pk=call.pk).update(round=2)
    assert refusal(call) == "withdrawn"


@pytest.mark.parametrize(
    "fields", [{"status": "cancelled"}, {"status": "completed"}, {"cancel_requested_at": ago(seconds=1)}]
)
def test_a_run_that_ends_launches_nothing(people: Any, fields: Any) -> None:
    call = approved(people.alice, people.carol)
    AgentRun.objects.filter(pk=call.run_id).update(**fields)
    assert refusal(call) == "not_active"


def test_an_approver_who_lost_the_right_approves_nothing(people: Any) -> None:
    call = approved(people.alice, people.carol)
    people.carol.user_permissions.clear()
    assert refusal(call) == "withdrawn"


@pytest.mark.parametrize("end", ["deactivated", "deleted"])
@pytest.mark.parametrize("who", ["alice", "carol"])
def test_nothing_runs_for_or_by_accounts_that_are_closed(people: Any, who: str, end: str) -> None:
    call = approved(people.alice, people.carol)
    account = get_user_model().objects.filter(pk=getattr(people, who).pk)
    account.update(is_active=False) if end == "deactivated" else account.delete()
    assert refusal(call) == {"alice": "not_permitted", "carol": "withdrawn"}[who]


def test_an_approver_who_became_a_requester_approves_nothing(people: Any) -> None:
    call = approved(people.alice, people.carol)
    AgentRun.objects.filter(pk=call.run_id).update(requesters=[f"user:{people.carol.pk}"])
    assert refusal(call) == "withdrawn"


def test_a_requester_who_lost_the_permission_runs_nothing(people: Any) -> None:
    grant(people.alice, PLAYGROUND)
    call = approved(people.alice, people.alice, "guarded")
    people.alice.user_permissions.clear()
    assert refusal(call) == "not_permitted"


def test_a_requester_who_may_not_start_the_agent_any_more_runs_nothing(people: Any, counter: Agent) -> None:
    call = approved(people.alice, people.carol)
    clear()
    register(replace(counter, public=False, group="Managers"))
    assert refusal(call) == "not_permitted"


def test_a_tool_that_is_gone_runs_nothing(people: Any, counter: Agent) -> None:
    call = approved(people.alice, people.carol)
    clear()
    assert refusal(call) == "missing"
    register(replace(counter, tools=()))
    assert refusal(call) == "missing"


def test_a_tool_that_the_persona_does_not_have_runs_nothing(people: Any, counter: Agent) -> None:
    call = approved(people.alice, people.carol)
    clear()
    register(replace(counter, personas=(Persona("shy", tools=("look",)),)))
    AgentRun.objects.filter(pk=call.run_id).update(persona="shy")
    assert refusal(call) == "missing"


def test_another_tool_under_the_name_runs_nothing(people: Any) -> None:
    call = approved(people.alice, people.carol)
    assert refusal(call, identity=call.identity.replace(":1:", ":2:")) == "changed"
    assert refusal(call, identity=call.identity.upper()) == "changed"
    assert refusal(call, identity=call.identity + " ") == "changed"


def test_a_read_that_became_an_action_does_not_run_unasked(people: Any, counter: Agent) -> None:
    call = park(start(people.alice), "look")
    looked = find_tool(counter, "look")
    assert looked is not None
    clear()
    register(replace(counter, tools=(replace(looked, kind="action", tier="confirm"),)))
    assert refusal(call) == "changed"


@pytest.mark.parametrize("stored", [{"to": "evil"}, {"to": "a", "more": 1}, {}, {"to": "a "}])
def test_other_arguments_do_not_run(people: Any, stored: Any) -> None:
    call = approved(people.alice, people.carol)
    ToolCall.objects.filter(pk=call.pk).update(input=stored)
    assert refusal(call) == "changed"


def test_arguments_that_were_changed_with_their_digest_do_not_run(people: Any) -> None:
    call = approved(people.alice, people.carol)
    evil = {"to": "evil"}
    digest = codec.digest(evil, identity=call.identity)
    ToolCall.objects.filter(pk=call.pk).update(input=evil, digest=digest)
    assert refusal(call) == "changed"


def test_an_approval_does_not_last_for_ever(people: Any) -> None:
    call = approved(people.alice, people.carol)
    Decision.objects.update(created_at=ago(hours=23, minutes=59))
    with transaction.atomic():
        point = transaction.savepoint()
        launch(call)
        transaction.savepoint_rollback(point)
    Decision.objects.update(created_at=ago(hours=24, seconds=1))
    assert refusal(call) == "expired"
    with override_settings(AGORA_AGENT={"APPROVAL_VALID_SECONDS": 90000.0}):
        launch(call)


def test_a_deadline_that_passes_after_the_approval_does_not_matter(people: Any) -> None:
    call = approved(people.alice, people.carol)
    ToolCall.objects.filter(pk=call.pk).update(expires_at=ago(seconds=1))
    assert launch(call).status == "executing"


# -- again, after an unknown outcome ---------------------------------------------------------------------------------


def interrupted(people: Any) -> ToolCall:
    call = park(start(people.alice), "note", status="interrupted", launched_at=ago(hours=30))
    Decision.objects.create(
        tool_call=call,
        verdict="approve",
        principal=people.alice,
        via="rest",
        digest=call.digest,
        created_at=ago(hours=31),
    )
    return call


def test_an_unknown_outcome_runs_again_on_the_word_of_a_second_person(people: Any) -> None:
    call = interrupted(people)
    assert refusal(call) == "withdrawn"
    settle(at(people.gina), call_id="c1", outcome="again")
    launched = launch(call)
    assert launched.status == "executing"
    settlement = Decision.objects.get(verdict="settle")
    assert AuditEntry.objects.get(action="launched").content["settlement"] == str(settlement.pk)
    ToolCall.objects.filter(pk=call.pk).update(status="interrupted")
    with pytest.raises(LaunchRefused):
        launch(call)
    settle(at(people.gina), call_id="c1", outcome="again")
    assert launch(call).launched_at > settlement.created_at + timedelta(0)


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_an_outcome_that_is_known_now_runs_nothing(people: Any, outcome: Any) -> None:
    call = interrupted(people)
    settle(at(people.gina), call_id="c1", outcome=outcome)
    assert refusal(call) == "withdrawn"


def test_one_who_may_not_settle_any_more_lets_nothing_run_again(people: Any) -> None:
    call = interrupted(people)
    settle(at(people.gina), call_id="c1", outcome="again")
    people.gina.user_permissions.clear()
    assert refusal(call) == "withdrawn"


class Never:
    """A project's policy that says no."""

    def allows(self, tool: Any, user: Any, agent: Any) -> bool:
        return False


def test_a_projects_policy_is_asked_by_the_precheck_and_not_by_the_gate(people: Any) -> None:
    call = approved(people.alice, people.carol)
    precheck(call.pk)
    with override_settings(AGORA_AGENT={"TOOL_POLICY": Never}):
        with pytest.raises(LaunchRefused) as refused:
            precheck(call.pk)
        assert refused.value.code == "not_permitted"
        assert launch(call).status == "executing"


def test_a_precheck_leaves_what_has_changed_to_the_gate(people: Any, counter: Agent) -> None:
    call = approved(people.alice, people.carol)
    with override_settings(AGORA_AGENT={"TOOL_POLICY": Never}):
        ToolCall.objects.filter(pk=call.pk).update(identity=call.identity + "x")
        precheck(call.pk)
        ToolCall.objects.filter(pk=call.pk).update(identity=call.identity, status="executed")
        precheck(call.pk)
        ToolCall.objects.filter(pk=call.pk).update(status="approved")
        clear()
        precheck(call.pk)
    assert refusal(call) == "missing"
