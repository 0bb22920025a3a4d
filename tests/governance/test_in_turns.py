"""What stands between a yes and its effect, in turns that really run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import register
from agora_agent.agents.tool import ToolContext, tool
from agora_agent.exceptions import AlreadyDecided, Forbidden
from agora_agent.governance import audit
from agora_agent.governance.decisions import decide, settle
from agora_agent.models import AgentRun, AuditEntry, Decision, ToolCall
from agora_agent.providers.scripted import Reply
from agora_agent.turn import runner
from tests.clerk.model import CLERK
from tests.governance.rows import RELEASE, at
from tests.support.turns import ended, pending, start, until

pytestmark = pytest.mark.django_db(transaction=True)

DONE: list[str] = []


@tool(kind="action", approver=RELEASE)
def pay(to: str) -> str:
    """Pay somebody; a holder of the permission authorises."""
    DONE.append(to)
    return "paid"


@tool(kind="action")
def meddle(ctx: ToolContext, call_id: str) -> str:
    """Try to approve another call."""
    decide(at(ctx.user), call_id=call_id, verdict="approve")
    return "approved"


@tool(kind="action", timeout=timedelta(milliseconds=50))
def vague(ctx: ToolContext) -> str:
    """Run out of time: nobody knows what it has done."""
    DONE.append("tried")
    ctx.abort_signal.wait(10)
    raise RuntimeError("no answer")


@pytest.fixture(autouse=True)
def hatch(clerk: Any, people: Any) -> None:
    DONE.clear()
    register(Agent("hatch", "Help.", tools=[pay, meddle, vague], public=True, provider=CLERK))


def begin(people: Any, *calls: tuple[str, dict[str, Any]]) -> tuple[AgentRun, list[ToolCall]]:
    CLERK.script(Reply(calls=list(calls)), "That was it.")
    run_id = start(people.alice, agent="hatch")
    return AgentRun.objects.get(pk=run_id), pending(run_id, len(calls))


def say(user: Any, call: ToolCall, verdict: Any = "approve") -> None:
    decide(at(user), call_id=call.call_id, run_id=call.run_id, verdict=verdict)


def actions(run: AgentRun) -> list[str]:
    return list(
        AuditEntry.objects.filter(chain=str(run.pk)).order_by("number").values_list("action", flat=True)
    )


def test_a_yes_is_recorded_from_the_request_to_the_effect(people: Any, either_runner: str) -> None:
    run, [call] = begin(people, ("pay", {"to": "b"}))
    say(people.carol, call)
    assert ended(run.pk).status == "completed"
    assert DONE == ["b"]
    assert actions(run) == ["requested", "decided", "launched", "settled"]
    assert not audit.verify()


@pytest.mark.parametrize("lost", ["right", "account"])
def test_a_yes_is_worth_nothing_when_its_giver_has_lost_the_right_before_the_effect(
    people: Any, engine: Any, lost: str
) -> None:
    CLERK.script(Reply(calls=[("pay", {"to": "b"})]), "Not paid.")
    run_id = start(people.alice, agent="hatch")
    engine.run_due()
    [call] = pending(run_id)
    say(people.carol, call)
    if lost == "right":
        people.carol.user_permissions.clear()
    else:
        people.carol.is_active = False
        people.carol.save()
    engine.run_due()
    assert ended(run_id).status == "completed"
    call.refresh_from_db()
    assert (call.status, call.launched_at, DONE) == ("failed", None, [])
    assert "launched" not in actions(call.run)


class Watching:
    """A project's policy that notes where it is asked, and changes its mind."""

    answer = True
    in_transaction: list[bool] = []

    def allows(self, tool: Any, user: Any, agent: Any) -> bool:
        self.in_transaction.append(connection.in_atomic_block)
        list(type(user).objects.raw("SELECT 1 AS id" if self.answer else "SELECT no_such FROM nowhere"))
        return self.answer


@pytest.fixture
def watching(settings: Any) -> Iterator[type[Watching]]:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "TOOL_POLICY": "tests.governance.test_in_turns.Watching"}
    Watching.in_transaction.clear()
    yield Watching
    Watching.answer = True


def test_a_projects_policy_is_asked_again_before_the_effect_and_never_inside_a_transaction(
    people: Any, watching: type[Watching], either_runner: str
) -> None:
    run, [call] = begin(people, ("pay", {"to": "b"}))
    parked = len(watching.in_transaction)
    say(people.carol, call)
    assert ended(run.pk).status == "completed"
    assert DONE == ["b"]
    assert len(watching.in_transaction) > parked
    assert not any(watching.in_transaction)


def test_a_projects_policy_that_fails_before_the_effect_is_a_no(
    people: Any, watching: type[Watching], either_runner: str
) -> None:
    run, [call] = begin(people, ("pay", {"to": "b"}))
    watching.answer = False
    say(people.carol, call)
    assert ended(run.pk).status == "completed"
    call.refresh_from_db()
    assert (call.status, call.launched_at, DONE) == ("failed", None, [])
    assert "launched" not in actions(run)


def test_a_wake_up_without_a_decision_is_no_decision(people: Any, either_runner: str) -> None:
    run, [call] = begin(people, ("pay", {"to": "b"}))
    door = runner.get(run.durable)
    door.signal(run.pk, call.call_id, runner.Decision(approved=True))
    door.wake(run.pk, call.signal_key, dedupe="forged")
    door.wake(run.pk, call.signal_key, dedupe=str(run.pk))
    with pytest.raises(Forbidden):
        say(people.alice, call)
    assert DONE == []
    say(people.carol, call, "reject")
    assert ended(run.pk).status == "completed"
    call.refresh_from_db()
    assert (call.status, DONE) == ("rejected", [])


def test_a_tool_that_approves_another_call_fails(people: Any, either_runner: str) -> None:
    CLERK.script(
        Reply(calls=[("meddle", {"call_id": "x"})]),
        "That was it.",
    )
    first = start(people.alice, agent="hatch")
    [meddling] = pending(first)
    victim, [call] = begin(people, ("vague", {}))
    ToolCall.objects.filter(pk=call.pk).update(call_id="x")
    say(people.alice, meddling)
    ended(first)
    meddling.refresh_from_db()
    assert meddling.status == "failed"
    call.refresh_from_db()
    assert (call.status, DONE) == ("pending_approval", [])
    assert not Decision.objects.filter(tool_call=call).exists()
    runner.get(victim.durable).cancel(victim.pk)
    ended(victim.pk)


def test_an_unknown_outcome_waits_for_a_second_person_each_time(people: Any, either_runner: str) -> None:
    run, [call] = begin(people, ("vague", {}))
    say(people.alice, call)

    def unknown(times: int) -> Any:
        return until(lambda: len(DONE) == times and ToolCall.objects.filter(pk=call.pk, status="interrupted"))

    unknown(1)
    with pytest.raises(Forbidden):
        settle(at(people.alice), call_id=call.call_id, outcome="done")
    settle(at(people.gina), call_id=call.call_id, outcome="again")
    unknown(2)
    settle(at(people.gina), call_id=call.call_id, outcome="done", output={"found": "in the books"})
    assert ended(run.pk).status == "completed"
    call.refresh_from_db()
    assert (call.status, call.output) == ("executed", {"found": "in the books"})
    assert DONE == ["tried", "tried"]
    with pytest.raises(AlreadyDecided):
        settle(at(people.root), call_id=call.call_id, run_id=run.pk, outcome="failed")
    assert actions(run) == [
        "requested",
        "decided",
        *["launched", "settled", "settled_unknown"] * 2,
        "settled",
    ]
    assert not audit.verify()
