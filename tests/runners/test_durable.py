"""What the journal holds of a turn, and what a replay makes of it."""

from __future__ import annotations

import dataclasses

import pytest

from agora_agent.agents import registry
from agora_agent.durable.models import Journal, Run, Signal, Task
from agora_agent.exceptions import AlreadyDecided
from agora_agent.governance.decisions import decide, settle
from agora_agent.models import AgentRun, Decision, Frame, Message, ToolCall
from agora_agent.providers.scripted import Reply
from agora_agent.runners.assess import assess
from agora_agent.runners.durable import build_engine
from agora_agent.turn import runner
from agora_agent.turn.hooks import TurnInput
from agora_agent.turn.runner import Decision as DecisionReply
from tests.clerk.agents import OUTBOX
from tests.support.people import principal
from tests.support.turns import events, start, terminal

pytestmark = pytest.mark.django_db(transaction=True)

MAIL = Reply(calls=[("send_mail", {"to": "a"})])
WIPE = Reply(calls=[("wipe", {"what": "all"})])
READS = Reply(calls=[("read_stock", {"sku": "1"}), ("read_stock", {"sku": "2"})])


def journal(run_id):
    return list(Journal.objects.filter(run_id=run_id).order_by("pos").values_list("name", flat=True))


def approve(user, run_id, **options):
    call = ToolCall.objects.get(run_id=run_id, status="pending_approval")
    return decide(principal(user), run_id=run_id, call_id=call.call_id, verdict="approve", **options)


def test_the_checkpoints_of_a_turn_are_the_contract(alice, clerk, engine):
    clerk.script(READS, MAIL, "Done.")
    run_id = start(alice)
    engine.run_due()
    approve(alice, run_id)
    engine.run_due()
    [mail] = ToolCall.objects.filter(tool_name="send_mail")
    assert journal(run_id) == [
        "persist:run:start",
        "persist:user",
        "load:thread",
        "llm:0",
        "persist:usage:0",
        "persist:assistant:0",
        "persist:toolcall:call-1-1",
        "persist:toolcall:call-1-2",
        "tool:call-1-1",
        "tool:call-1-2",
        "persist:toolexec:call-1-1",
        "persist:toolexec:call-1-2",
        "persist:toolresults:0",
        "llm:1",
        "persist:usage:1",
        "persist:assistant:1",
        f"persist:toolcall:{mail.call_id}",
        f"signal:{mail.signal_key}",
        f"tool:{mail.call_id}",
        f"persist:toolexec:{mail.call_id}",
        "persist:toolresults:1",
        "llm:2",
        "persist:usage:2",
        "persist:assistant:2",
        "persist:run:end",
    ]
    assert Run.objects.get().status == "completed"
    assert len(clerk.requests) == 3
    steps = set(Task.objects.values_list("step", flat=True))
    assert steps == {"agent.llm", "agent.tool"}


def test_a_forged_yes_wakes_the_run_and_it_parks_again(alice, clerk, engine):
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    engine.run_due()
    before = journal(run_id)
    [call] = ToolCall.objects.all()
    runner.get(True).signal(run_id, call.call_id, DecisionReply(approved=True))
    engine.signal(run_id, call.signal_key, {"status": "approved"}, dedupe="decision")
    assert engine.run_due() > 0
    assert Run.objects.get().status == "suspended"
    assert (journal(run_id), OUTBOX, Signal.objects.count()) == (before, [], 0)
    approve(alice, run_id)
    engine.run_due()
    assert len(OUTBOX) == 1


def test_an_approval_frame_is_posted_once_whatever_is_replayed(alice, clerk, engine):
    calls = [("send_mail", {"to": name}) for name in "abc"]
    clerk.script(Reply(calls=calls), "Done.")
    run_id = start(alice)
    engine.run_due()
    for call in ToolCall.objects.order_by("index"):
        decide(principal(alice), run_id=run_id, call_id=call.call_id, verdict="approve")
        build_engine().run_due()
    assert [event for event, _ in events(run_id)].count("approval") == 3
    assert len(clerk.requests) == 2
    assert [to for _, to in OUTBOX] == ["a", "b", "c"]


def test_the_recorded_kind_parks_an_action_where_the_tool_is_unknown(alice, carol, clerk, engine):
    run_id = start(alice)
    turn = TurnInput.unpack(AgentRun.objects.get(pk=run_id).input)
    tool = registry.find_tool(registry.get_agent("desk"), "wipe")
    offered = {
        "id": "c1", "name": "wipe", "input": {"what": "all"}, "error": "", "kind": "action",
        "identity": tool.identity, "tier": tool.tier, "approver": tool.approver, "queue": "default",
    }  # fmt: skip
    with registry.isolated():
        registry.clear()
        assessment = assess(turn, offered)
        unknown = assess(turn, {**offered, "kind": "read", "identity": ""})
    assert (assessment.verdict, assessment.tier, assessment.approver) == (
        "ask",
        "authorise",
        "permission:clerk.wipe",
    )
    assert (assessment.identity, assessment.at_most_once) == (tool.identity, True)
    assert unknown.verdict == "refuse"


def test_an_approved_action_whose_tool_is_gone_fails_and_the_run_goes_on(alice, carol, clerk, engine):
    clerk.script(WIPE, "Wiped.")
    run_id = start(alice)
    with registry.isolated():
        engine.drive(run_id)
        assert ToolCall.objects.get().status == "pending_approval"
        desk = registry.get_agent("desk")
        registry.clear()
        registry.register(dataclasses.replace(desk, tools=[], delegates=[]))
        approve(carol, run_id)
        engine.run_due()
    call = ToolCall.objects.get()
    assert (call.status, OUTBOX) == ("failed", [])
    assert "does not exist" in call.error
    assert AgentRun.objects.get().status == "completed"


def test_a_tool_that_changed_meanwhile_asks_again(alice, carol, clerk, engine):
    clerk.script(WIPE, "Wiped.")
    run_id = start(alice)
    engine.run_due()
    with registry.isolated():
        desk = registry.get_agent("desk")
        registry.clear()
        tools = [
            dataclasses.replace(tool, version="2") if tool.name == "wipe" else tool for tool in desk.tools
        ]
        registry.register(dataclasses.replace(desk, tools=tools, delegates=[]))
        approve(carol, run_id)
        engine.run_due()
        call = ToolCall.objects.get()
        assert (call.status, call.round, OUTBOX) == ("pending_approval", 2, [])
        forms = [data for event, data in events(run_id) if event == "approval"]
        assert [form["round"] for form in forms] == [1, 2]
        assert call.signal_key == f"tool:{run_id}:{call.call_id}:2"
        approve(carol, run_id)
        engine.run_due()
    assert AgentRun.objects.get().status == "completed"
    assert len(OUTBOX) == 1
    assert f"persist:toolcall:{call.call_id}:2" in journal(run_id)


def test_an_approval_whose_giver_lost_the_right_launches_nothing(alice, carol, clerk, engine):
    clerk.script(WIPE, "Not wiped.")
    run_id = start(alice)
    engine.run_due()
    approve(carol, run_id)
    carol.user_permissions.clear()
    engine.run_due()
    call = ToolCall.objects.get()
    assert (call.status, OUTBOX) == ("failed", [])
    assert AgentRun.objects.get().answer == "Not wiped."


def test_an_old_run_keeps_the_shape_that_it_was_recorded_in(alice, clerk, engine):
    """The journal of a run from before both patches, continued by code that has them."""
    clerk.script(Reply(calls=[("send_mail", {"to": "a"}), ("read_stock", {})]), READS, "Done.")
    run_id = start(alice)
    old = build_engine()
    old._patches.clear()
    old.patch_number = lambda patch: 1  # type: ignore[method-assign]
    old.drive(run_id)
    assert Run.objects.get().patch_level == 0
    assert journal(run_id)[:7] == [
        "persist:run:start",
        "persist:user",
        "history:window",
        "llm:0",
        "persist:usage:0",
        "persist:assistant:0",
        "persist:toolcall:call-1-1",
    ]
    assert len(journal(run_id)) == 7
    approve(alice, run_id)
    engine.run_due()
    run = AgentRun.objects.get()
    assert (run.status, run.answer) == ("completed", "Done.")
    names = journal(run_id)
    first_read = names.index("persist:toolcall:call-1-2")
    assert names[first_read - 1] == "persist:toolexec:call-1-1"
    second = [name for name in names if name.endswith(("call-2-1", "call-2-2"))]
    assert second == [
        f"{kind}:{call}"
        for call in ("call-2-1", "call-2-2")
        for kind in ("persist:toolcall", "tool", "persist:toolexec")
    ]
    assert [message["role"] for message in clerk.requests[1].messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]


def test_a_journal_of_other_code_fails_the_run_and_settles_everything(alice, clerk, engine):
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    engine.run_due()
    Journal.objects.filter(run_id=run_id, name="llm:0").update(name="llm:zero")
    before = journal(run_id)
    approve(alice, run_id)
    engine.run_due()
    run = AgentRun.objects.get()
    assert (run.status, run.error_code) == ("failed", "replay_diverged")
    assert "llm:zero" in run.error_detail
    assert "llm:0" in run.error_detail
    assert journal(run_id) == before
    assert terminal(run_id) == "error"
    assert ToolCall.objects.get().status == "failed"
    assert run.thread.active_run_id is None
    assert OUTBOX == []


def test_an_unknown_outcome_waits_for_a_person_who_can_run_it_again(alice, carol, clerk, engine):
    clerk.script(WIPE, "Wiped.")
    run_id = start(alice)
    engine.run_due()
    approve(carol, run_id)
    Task.objects.filter(step="agent.tool").delete()
    with registry.isolated():
        desk = registry.get_agent("desk")
        registry.clear()

        def stopped(ctx, what):
            ctx.abort_signal.abort("timeout")
            raise RuntimeError("cut")

        tools = [
            dataclasses.replace(tool, handler=stopped) if tool.name == "wipe" else tool for tool in desk.tools
        ]
        registry.register(dataclasses.replace(desk, tools=tools, delegates=[]))
        engine.run_due()
    call = ToolCall.objects.get()
    assert (call.status, OUTBOX) == ("interrupted", [])
    run = AgentRun.objects.get()
    assert (run.status, run.phase) == ("running", "waiting")
    assert "tool-result" not in [event for event, _ in events(run_id)]
    settle(
        principal(carol), run_id=run_id, call_id=call.call_id, outcome="again", reason="the log shows nothing"
    )
    engine.run_due()
    call.refresh_from_db()
    assert (call.status, len(OUTBOX)) == ("executed", 1)
    assert OUTBOX[0][0] == f"{run_id}:{call.call_id}"
    run.refresh_from_db()
    assert (run.status, run.answer) == ("completed", "Wiped.")
    again = settle(principal(carol), run_id=run_id, call_id=call.call_id, outcome="again")
    assert again.repeated
    with pytest.raises(AlreadyDecided):
        settle(principal(carol), run_id=run_id, call_id=call.call_id, outcome="failed")


def test_a_second_process_finishes_what_the_first_began(alice, clerk, engine):
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    engine.run_due()
    approve(alice, run_id)
    other = build_engine()
    other.run_due()
    assert AgentRun.objects.get().status == "completed"
    assert Message.objects.filter(role="user").count() == 1
    assert Decision.objects.count() == 1
    assert Frame.objects.filter(event="approval").count() == 1
