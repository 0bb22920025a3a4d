"""What a turn does, the same under both runners."""

from __future__ import annotations

import json

import pytest

from agora_agent.exceptions import (
    AlreadyDecided,
    Forbidden,
    InvalidInput,
    NotVisible,
    RunActive,
    RunNotActive,
    WrongReply,
)
from agora_agent.governance.decisions import decide
from agora_agent.models import AgentRun, AuditEntry, Message, Thread, ToolCall, Usage
from agora_agent.providers.scripted import Reply
from agora_agent.turn import runner
from tests.clerk.agents import BEGUN, CALLS, GO_ON, OUTBOX
from tests.support.people import person, principal
from tests.support.turns import ended, events, pending, start, terminal, text_of, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("either_runner")]

MAIL = Reply(calls=[("send_mail", {"to": "a"})])


def approve(user, call, **options):
    return decide(principal(user), run_id=call.run_id, call_id=call.call_id, verdict="approve", **options)


def reject(user, call, reason=""):
    return decide(principal(user), run_id=call.run_id, call_id=call.call_id, verdict="reject", reason=reason)


def names(run_id):
    return [event for event, _ in events(run_id) if event]


def results(run_id):
    return [(data["id"], data["status"]) for event, data in events(run_id) if event == "tool-result"]


def test_a_turn_without_tools_stores_both_messages_and_streams_the_answer(alice, clerk, either_runner):
    clerk.script("Hello Alice.")
    run = ended(start(alice))
    assert (run.status, run.finish_reason, run.steps, run.answer) == ("completed", "stop", 1, "Hello Alice.")
    assert run.durable is (either_runner == "durable")
    assert text_of(run.pk) == "Hello Alice."
    assert terminal(run.pk) == "done"
    roles = list(Message.objects.order_by("seq").values_list("role", "content"))
    assert roles == [("user", "hello"), ("assistant", "Hello Alice.")]
    assert Thread.objects.get().active_run_id is None
    assert [(row.state, row.output_tokens) for row in Usage.objects.all()] == [("reported", 2)]


def test_a_read_runs_unasked_and_its_result_reaches_the_model(alice, clerk):
    clerk.script(Reply(calls=[("read_stock", {"sku": "x"})]), "Four.")
    run = ended(start(alice))
    assert run.answer == "Four."
    [call] = run.tool_calls.all()
    assert (call.status, call.output) == ("executed", {"qty": 4, "sku": "x"})
    assert json.loads(clerk.requests[1].messages[-1]["content"]) == {"qty": 4, "sku": "x"}
    assert names(run.pk) == ["step", "tool-call", "tool-result", "step", "step", "step"]


def test_reads_of_one_step_overlap_and_keep_their_order(alice, clerk):
    clerk.script(Reply(calls=[("meet", {"name": "a"}), ("meet", {"name": "b"})]), "Met.")
    run = ended(start(alice))
    assert (run.status, run.answer) == ("completed", "Met.")
    assert [message["content"] for message in clerk.requests[1].messages[-2:]] == ["a", "b"]
    assert [status for _, status in results(run.pk)] == ["executed", "executed"]


def test_an_action_waits_for_its_person_and_runs_once(alice, clerk):
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    [call] = pending(run_id)
    assert (call.tier, call.input, OUTBOX) == ("confirm", {"to": "a"}, [])
    run = AgentRun.objects.get(pk=run_id)
    assert (run.status, run.phase) == ("running", "waiting")
    assert runner.get(run.durable).is_run_active(run_id)
    standing = approve(alice, call)
    assert (standing.status, standing.repeated) == ("approved", False)
    run = ended(run_id)
    assert [(f"{run_id}:{call.call_id}", "a")] == OUTBOX
    assert run.answer == "Sent."
    assert names(run_id) == [
        "step", "tool-call", "approval", "decision", "tool-result", "step", "step", "step",
    ]  # fmt: skip
    actions = list(AuditEntry.objects.order_by("number").values_list("action", flat=True))
    assert actions == ["requested", "decided", "launched", "settled"]
    assert approve(alice, call).repeated
    with pytest.raises(AlreadyDecided):
        reject(alice, call)


def test_the_requester_does_not_authorise_and_the_holder_does(alice, carol, clerk):
    clerk.script(Reply(calls=[("wipe", {"what": "all"})]), "Wiped.")
    run_id = start(alice)
    [call] = pending(run_id)
    assert (call.tier, call.approver, call.preview) == ("authorise", "permission:clerk.wipe", "Wipe all.")
    [(_, form)] = [frame for frame in events(run_id) if frame[0] == "approval"]
    assert (form["runId"], form["waitingFor"], form["digest"]) == (str(run_id), ["carol"], call.digest)
    with pytest.raises(Forbidden):
        approve(alice, call)
    with pytest.raises(NotVisible):
        approve(person("bob"), call)
    approve(carol, call, digest=call.digest)
    assert ended(run_id).answer == "Wiped."
    assert len(OUTBOX) == 1


def test_a_rejection_reaches_the_model_as_a_persons_no(alice, clerk):
    clerk.script(MAIL, "As you wish.")
    run_id = start(alice)
    [call] = pending(run_id)
    reject(alice, call, 'wrong person, "use b" \U0001f600\nplease')
    run = ended(run_id)
    assert (run.status, OUTBOX) == ("completed", [])
    call.refresh_from_db()
    assert (call.status, call.output) == ("rejected", None)
    told = clerk.requests[1].messages[-1]
    assert told["status"] == "rejected"
    assert 'wrong person, "use b" \U0001f600\nplease' in told["content"]
    assert "Do not ask" in told["content"]


def test_calls_of_one_step_are_all_shown_at_once_and_decided_in_any_order(alice, clerk):
    calls = [("send_mail", {"to": "a"}), ("read_stock", {}), ("send_mail", {"to": "b"})]
    clerk.script(Reply(calls=calls), "Done.")
    run_id = start(alice)
    first, last = pending(run_id, 2)
    approve(alice, last)
    reject(alice, first)
    run = ended(run_id)
    assert [to for _, to in OUTBOX] == ["b"]
    told = [(message["name"], message["status"]) for message in clerk.requests[1].messages[-3:]]
    assert told == [("send_mail", "rejected"), ("read_stock", "executed"), ("send_mail", "executed")]
    assert len([name for name in names(run.pk) if name == "approval"]) == 2


def test_failing_tools_do_not_fail_the_run_and_leak_nothing(alice, clerk):
    secret = "SENTINEL-sk-123"
    calls = [
        ("broken", {"message": secret}),
        ("broken", {}),
        ("refuses", {}),
        ("odd", {"kind": "nan"}),
        ("odd", {"kind": "object"}),
        ("odd", {"kind": "none"}),
        ("odd", {"kind": "empty"}),
        ("read_stock", {"nonsense": 1}),
        ("send_mial", {}),
        ("", {}),
        ("read_stock", {"sku": "kept"}),
    ]
    clerk.script(Reply(calls=calls), "Well.")
    run = ended(start(alice))
    assert (run.status, run.answer) == ("completed", "Well.")
    told = clerk.requests[1].messages[-len(calls) :]
    assert [message["status"] for message in told] == [
        *["failed"] * 5, "executed", "executed", *["failed"] * 3, "executed",
    ]  # fmt: skip
    assert all(message["content"] for message in told)
    assert "no such shelf" in told[2]["content"]
    assert "read_stock" in told[8]["content"]
    assert secret not in str(events(run.pk)[1:]).replace(str(calls), "").replace(f"'message': '{secret}'", "")
    assert len(results(run.pk)) == len(calls)


def test_an_invalid_action_is_refused_and_not_shown_to_anybody(alice, clerk):
    clerk.script(Reply(calls=[("send_mail", {})]), MAIL, "Sent.")
    run_id = start(alice)
    [call] = pending(run_id)
    assert call.input == {"to": "a"}
    assert [name for name in names(run_id) if name == "approval"] == ["approval"]
    approve(alice, call)
    ended(run_id)
    assert len(OUTBOX) == 1


def test_a_model_that_never_stops_is_stopped(alice, clerk, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "MAX_STEPS": 3}
    clerk.script(Reply(calls=[("read_stock", {})]))
    run = ended(start(alice))
    assert (run.status, run.finish_reason, run.steps) == ("completed", "max_steps", 3)


def test_a_thread_has_one_live_run_and_remembers_what_was_said(alice, clerk):
    clerk.script(MAIL, "Sent.")
    first = start(alice)
    [call] = pending(first)
    thread = AgentRun.objects.get(pk=first).thread_id
    with pytest.raises(RunActive):
        start(alice, thread_id=thread)
    with pytest.raises(NotVisible):
        start(person("bob"), thread_id=thread)
    approve(alice, call)
    ended(first)
    clerk.script("Again.")
    second = ended(start(alice, "and now?", thread_id=thread))
    assert second.answer == "Again."
    roles = [message["role"] for message in clerk.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_nobody_starts_an_agent_that_is_not_theirs(alice, clerk):
    with pytest.raises(InvalidInput):
        start(alice, agent="nobody")
    with pytest.raises(InvalidInput):
        start(alice, "   ")
    alice.is_active = False
    alice.save()
    with pytest.raises(InvalidInput):
        start(alice)
    assert not Thread.objects.exists()
    assert not AgentRun.objects.exists()


def test_cancel_while_parked_ends_everything_and_a_late_yes_changes_nothing(alice, clerk):
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    [call] = pending(run_id)
    agent_runner = runner.get(AgentRun.objects.get(pk=run_id).durable)
    assert agent_runner.cancel(run_id, by="user:1") is True
    run = ended(run_id)
    assert (run.status, run.error_code, run.error_detail, run.cancelled_by) == ("cancelled", "", "", "user:1")
    assert names(run_id)[-2:] == ["tool-result", "cancelled"]
    assert terminal(run_id) == "done"
    call.refresh_from_db()
    assert call.status == "cancelled"
    with pytest.raises(RunNotActive):
        approve(alice, call)
    assert agent_runner.cancel(run_id) is False
    assert OUTBOX == []
    clerk.script("Fine.")
    again = ended(start(alice, "hi", thread_id=run.thread_id))
    assert again.answer == "Fine."


def test_cancel_during_a_model_call_stops_it_and_keeps_nothing_of_the_step(alice, clerk):
    clerk.holds = True
    clerk.script("Never said.")
    run_id = start(alice)
    assert clerk.begun.wait(10)
    runner.get(AgentRun.objects.get(pk=run_id).durable).cancel(run_id)
    run = ended(run_id)
    assert run.status == "cancelled"
    assert terminal(run_id) == "done"
    assert [row.role for row in Message.objects.all()] == ["user"]
    until(lambda: Usage.objects.get().state == "unknown", "the usage row to be closed")


def test_cancel_during_a_tool_lets_it_end_records_it_and_starts_nothing_more(alice, clerk):
    clerk.script(Reply(calls=[("slow_read", {}), ("send_mail", {"to": "a"})]), "Never.")
    run_id = start(alice)
    assert BEGUN.wait(10)
    runner.get(AgentRun.objects.get(pk=run_id).durable).cancel(run_id)
    GO_ON.set()
    run = ended(run_id)
    assert run.status == "cancelled"
    statuses = {call.tool_name: call.status for call in ToolCall.objects.all()}
    until(lambda: ToolCall.objects.get(tool_name="slow_read").status in ("executed", "cancelled"), "the read")
    assert statuses["send_mail"] == "cancelled"
    assert len(clerk.requests) == 1
    assert OUTBOX == []


def test_a_helper_parks_on_its_own_run_and_its_frames_ride_in_the_top_stream(alice, clerk):
    clerk.script(Reply("A ", calls=[("helper", {"task": "mail"})]), "B")
    clerk.script(Reply("x ", calls=[("send_mail", {"to": "k"})]), "helped ", agent="helper")
    run_id = start(alice)
    child = until(lambda: AgentRun.objects.filter(parent_id=run_id).first(), "the child")
    [call] = pending(child.pk)
    [(_, form)] = [frame for frame in events(run_id) if frame[0] == "approval"]
    assert form["runId"] == str(child.pk)
    assert child.actor_id == alice.pk
    with pytest.raises((NotVisible, WrongReply)):  # the parent's own call may have the same id
        decide(principal(alice), run_id=run_id, call_id=call.call_id, verdict="approve")
    approve(alice, call)
    run = ended(run_id)
    assert text_of(run_id) == "A x helped B"
    assert len(OUTBOX) == 1
    [delegated] = run.tool_calls.all()
    assert (delegated.kind, delegated.status, delegated.output) == ("agent", "executed", {"text": "helped "})
    assert delegated.child_run_id == child.pk
    child.refresh_from_db()
    assert child.status == "completed"
    assert Thread.objects.alive().count() == 1


def test_cancelling_the_parent_cancels_the_parked_child(alice, clerk):
    clerk.script(Reply(calls=[("helper", {"task": "mail"})]), "B")
    clerk.script(MAIL, "helped", agent="helper")
    run_id = start(alice)
    child = until(lambda: AgentRun.objects.filter(parent_id=run_id).first(), "the child")
    [call] = pending(child.pk)
    runner.get(child.durable).cancel(run_id)
    assert ended(run_id).status == "cancelled"
    assert ended(child.pk).status == "cancelled"
    assert results(run_id)[-1][1] == "cancelled"
    assert names(run_id)[-1] == "cancelled"
    with pytest.raises(RunNotActive):
        approve(alice, call)


def test_agents_do_not_delegate_in_a_circle(alice, clerk):
    clerk.script(Reply(calls=[("helper", {"task": "t"})]), "B")
    clerk.script(Reply(calls=[("desk", {"task": "t"})]), "helped", agent="helper")
    run = ended(start(alice))
    assert run.status == "completed"
    assert AgentRun.objects.count() == 2
    refused = ToolCall.objects.get(tool_name="desk")
    assert refused.status == "failed"
    assert "desk → helper → desk" in refused.error


def test_a_nul_and_half_a_character_break_nothing(alice, clerk):
    clerk.script(Reply("a\x00b", calls=[("read_stock", {"sku": "x\x00"})]), "\ud83d\ude00 \udc00.")
    run = ended(start(alice, "he\x00llo"))
    assert run.status == "completed"
    assert Message.objects.order_by("seq").first().content == "he\u2400llo"
    assert "\x00" not in run.answer


def test_a_person_who_is_deactivated_while_waiting_loses_the_run(alice, carol, clerk):
    clerk.script(Reply(calls=[("wipe", {"what": "all"})]), "Not wiped.")
    run_id = start(alice)
    [call] = pending(run_id)
    alice.is_active = False
    alice.save()
    approve(carol, call)
    run = ended(run_id)
    assert OUTBOX == []
    call.refresh_from_db()
    assert call.status == "failed"
    assert run.status == "failed"


def test_reads_called_are_kept_apart(alice, clerk):
    clerk.script(Reply(calls=[("read_stock", {"sku": "1"}), ("read_stock", {"sku": "2"})]), "ok")
    ended(start(alice))
    assert sorted(arguments["sku"] for _, arguments in CALLS) == ["1", "2"]


def test_a_run_waits_as_long_as_one_of_its_calls_does(alice, clerk):
    clerk.script(
        Reply(calls=[("read_stock", {}), ("send_mail", {"to": "a"}), ("send_mail", {"to": "b"})]), "ok"
    )
    run_id = start(alice)
    first, second = pending(run_id, 2)
    until(
        lambda: ToolCall.objects.get(run_id=run_id, tool_name="read_stock").status == "executed", "the read"
    )
    assert AgentRun.objects.get(pk=run_id).phase == "waiting"
    approve(alice, first)
    until(lambda: len(OUTBOX) == 1, "the first mail")
    until(lambda: AgentRun.objects.get(pk=run_id).phase == "waiting", "the run to wait again")
    approve(alice, second)
    assert ended(run_id).phase == "ended"
