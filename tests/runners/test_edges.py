"""Where a turn could end otherwise than its rows and its readers are told."""

from __future__ import annotations

import dataclasses
import logging
import threading
from contextlib import contextmanager

import pytest
from django.db import connection

from agora_agent.agents import registry
from agora_agent.durable import faults, store
from agora_agent.durable.models import Run, Task
from agora_agent.exceptions import LimitExceeded
from agora_agent.governance.decisions import decide, settle
from agora_agent.governance.policy import Requirement
from agora_agent.models import AgentRun, ToolCall, Usage
from agora_agent.providers.scripted import Reply
from agora_agent.runners import maintenance
from agora_agent.runners.durable import DurableAgentRunner, build_engine
from agora_agent.runners.maintenance import maintain
from agora_agent.turn import runner
from tests.clerk.agents import BEGUN, OUTBOX
from tests.support.people import person, principal
from tests.support.turns import ended, events, pending, start, terminal, until

pytestmark = pytest.mark.django_db(transaction=True)

MAIL = Reply(calls=[("send_mail", {"to": "a"})])
WIPE = Reply(calls=[("wipe", {"what": "all"})])
READS = Reply(calls=[("read_stock", {"sku": "1"}), ("read_stock", {"sku": "2"})])


class AskEverything:
    """A policy that wants even reads confirmed."""

    def require(self, tool, arguments, user, run):
        return Requirement("ask", "confirm")


@contextmanager
def desk_with(**changes):
    """The desk with other versions of its tools."""
    with registry.isolated():
        change(**changes)
        yield


def change(**changes):
    desk = registry.get_agent("desk")
    tools = [dataclasses.replace(tool, **changes.get(tool.name, {})) for tool in desk.tools]
    others = [agent for name, agent in registry.agents().items() if name != "desk"]
    registry.clear()
    registry.register(dataclasses.replace(desk, tools=tools), *others)


def approve(user, run_id):
    call = ToolCall.objects.filter(run_id=run_id, status="pending_approval").order_by("index").first()
    return decide(principal(user), run_id=run_id, call_id=call.call_id, verdict="approve")


def results(run_id):
    return [(data["id"], data["status"]) for event, data in events(run_id) if event == "tool-result"]


def announced(run_id):
    return [data["id"] for event, data in events(run_id) if event == "tool-call"]


def test_reads_that_a_policy_asks_about_wait_like_anything_else(alice, clerk, engine, settings):
    settings.AGORA_AGENT = {
        **settings.AGORA_AGENT,
        "APPROVAL_POLICY": "tests.runners.test_edges.AskEverything",
    }
    clerk.script(READS, "Done.")
    run_id = start(alice)
    engine.run_due()
    assert list(ToolCall.objects.values_list("status", flat=True)) == ["pending_approval"] * 2
    approve(alice, run_id)
    engine.run_due()
    approve(alice, run_id)
    engine.run_due()
    assert AgentRun.objects.get().status == "completed"
    assert list(ToolCall.objects.values_list("status", flat=True)) == ["executed"] * 2


def test_a_call_whose_tool_never_stops_changing_fails_and_the_run_goes_on(alice, carol, clerk, engine):
    clerk.script(WIPE, "Given up.")
    run_id = start(alice)
    engine.run_due()
    with registry.isolated():
        for version in range(2, 7):
            change(wipe={"version": str(version)})
            approve(carol, run_id)
            engine.run_due()
    run, call = AgentRun.objects.get(), ToolCall.objects.get()
    assert (run.status, run.answer, call.status, OUTBOX) == ("completed", "Given up.", "failed", [])
    assert [event for event, _ in events(run_id)].count("approval") == 5
    assert len(results(run_id)) == 1


def test_a_call_that_asks_again_takes_over_the_new_tools_rules(alice, carol, clerk, engine):
    clerk.script(WIPE, "Wiped.")
    with desk_with(wipe={"idempotent": True}):
        run_id = start(alice)
        engine.run_due()
        assert ToolCall.objects.get().at_most_once is False
        change(wipe={"idempotent": False, "version": "2"})
        approve(carol, run_id)
        engine.run_due()
        assert ToolCall.objects.get().at_most_once is True
        approve(carol, run_id)
        engine.run_due()
    modes = Task.objects.filter(step="agent.tool").order_by("pos").values_list("mode", flat=True)
    assert list(modes) == ["at_least_once", "at_most_once"]


def test_a_read_whose_tool_changed_before_its_launch_is_checked_again_and_runs(alice, clerk, engine):
    clerk.script(Reply(calls=[("read_stock", {"sku": "1"})]), "Read.")
    with registry.isolated():
        run_id = start(alice)
        with faults.at("after_dispatch", _once(lambda: change(read_stock={"version": "2"}), skip=1)):
            engine.run_due()
    assert ToolCall.objects.get().status == "executed"
    assert ToolCall.objects.get().round == 2
    assert AgentRun.objects.get(pk=run_id).answer == "Read."


def _once(action, skip=0):
    seen = [0]

    def act():
        seen[0] += 1
        if seen[0] == skip + 1:
            action()

    return act


def interrupt(engine):
    """The process dies after the effect and before its result is written anywhere."""

    def dies(ctx, what):
        OUTBOX.append((ctx.idempotency_key, what))
        raise KeyboardInterrupt

    with desk_with(wipe={"handler": dies}), pytest.raises(KeyboardInterrupt):
        engine.run_due()
    Run.objects.filter(status="running").update(lease_until="2000-01-01T00:00Z", owner="gone")
    Task.objects.filter(status="running").update(lease_until="2000-01-01T00:00Z", owner="gone")
    engine.sweep()
    engine.run_due()


def test_an_unknown_outcome_stays_unknown_when_running_it_again_is_refused(alice, carol, clerk, engine):
    erin = person("erin", "agora_agent.settle_unknown")
    clerk.script(WIPE, "Wiped.")
    run_id = start(alice)
    engine.run_due()
    approve(carol, run_id)
    interrupt(engine)
    call = ToolCall.objects.get()
    assert (call.status, len(OUTBOX)) == ("interrupted", 1)
    settle(principal(erin), run_id=run_id, call_id=call.call_id, outcome="again")
    with desk_with(wipe={"version": "2"}):
        engine.run_due()
    call.refresh_from_db()
    assert (call.status, results(run_id)) == ("interrupted", [])
    assert "not what was asked about" in call.error
    settle(principal(erin), run_id=run_id, call_id=call.call_id, outcome="done", output="wiped by hand")
    engine.run_due()
    call.refresh_from_db()
    assert (call.status, call.output, len(OUTBOX)) == ("executed", "wiped by hand", 1)
    assert AgentRun.objects.get().status == "completed"
    assert results(run_id) == [(call.call_id, "executed")]


def test_a_result_that_was_written_before_the_process_died_needs_nobody(alice, carol, clerk, engine):
    clerk.script(WIPE, "Wiped.")
    run_id = start(alice)
    engine.run_due()
    approve(carol, run_id)
    with faults.at("after_task_body", _raise(KeyboardInterrupt)), pytest.raises(KeyboardInterrupt):
        engine.run_due()
    Run.objects.filter(status="running").update(lease_until="2000-01-01T00:00Z", owner="gone")
    Task.objects.filter(status="running").update(lease_until="2000-01-01T00:00Z", owner="gone")
    engine.sweep()
    engine.run_due()
    call = ToolCall.objects.get()
    assert (call.status, call.output, len(OUTBOX)) == ("executed", "wiped", 1)
    assert AgentRun.objects.get().answer == "Wiped."
    assert results(run_id) == [(call.call_id, "executed")]


def _raise(error):
    def act():
        raise error

    return act


def test_every_announced_call_has_its_one_result_when_the_run_is_cancelled(alice, clerk, engine):
    calls = [("send_mail", {"to": "a"}), ("send_mail", {}), ("send_mail", {"to": "b"})]
    clerk.script(Reply(calls=calls), "Never.")
    run_id = start(alice)
    engine.run_due()
    first = ToolCall.objects.order_by("index").first()
    decide(principal(alice), run_id=run_id, call_id=first.call_id, verdict="reject", reason="no")
    runner.get(True).cancel(run_id)
    assert AgentRun.objects.get().status == "cancelled"
    assert sorted(results(run_id)) == sorted(
        zip(announced(run_id), ["rejected", "failed", "cancelled"], strict=True)
    )
    assert terminal(run_id) == "done"


def test_what_an_action_did_is_told_although_its_run_was_stopped_elsewhere_meanwhile(alice, clerk, engine):
    elsewhere = DurableAgentRunner(build_engine())

    def handler(ctx, to):
        OUTBOX.append((ctx.idempotency_key, to))
        thread = threading.Thread(target=_in_thread, args=(lambda: elsewhere.cancel(ctx.run_id),))
        thread.start()
        thread.join()
        return {"sent": to}

    clerk.script(MAIL, "Never.")
    with desk_with(send_mail={"handler": handler}):
        run_id = start(alice)
        engine.run_due()
        approve(alice, run_id)
        engine.run_due()
    call = ToolCall.objects.get()
    assert AgentRun.objects.get().status == "cancelled"
    assert (call.status, call.output) == ("executed", {"sent": "a"})
    assert results(run_id) == [(call.call_id, "executed")]


def _in_thread(work):
    try:
        work()
    finally:
        connection.close()


def test_an_ended_run_asks_no_model_and_leaves_no_usage_open(alice, clerk, engine):
    clerk.script("Never.")
    run_id = start(alice)
    with faults.at(
        "after_dispatch", _once(lambda: AgentRun.objects.update(cancel_requested_at=store.DbNow()))
    ):
        Run.objects.update(cancel_at=None)
        engine.run_due()
    assert clerk.requests == []
    assert not Usage.objects.filter(state="open").exists()
    assert AgentRun.objects.get(pk=run_id).status == "cancelled"


def test_delegations_are_counted_where_they_start(alice, clerk, engine, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "MAX_CHILDREN_PER_RUN": 2}
    clerk.script(Reply(calls=[("helper", {"task": str(n)}) for n in range(4)]), "Done.")
    clerk.script("ok", agent="helper")
    run_id = start(alice)
    engine.run_due()
    assert AgentRun.objects.filter(parent_id=run_id).count() == 2
    statuses = list(ToolCall.objects.order_by("index").values_list("status", flat=True))
    assert statuses == ["executed", "executed", "failed", "failed"]
    assert AgentRun.objects.get(pk=run_id).status == "completed"


def test_a_delegate_keeps_its_own_step_limit(alice, clerk, engine):
    with registry.isolated():
        helper = registry.get_agent("helper")
        others = [agent for name, agent in registry.agents().items() if name != "helper"]
        registry.clear()
        registry.register(dataclasses.replace(helper, max_steps=1), *others)
        clerk.script(Reply(calls=[("helper", {"task": "t"})]), "Done.")
        clerk.script(Reply(calls=[("read_stock", {})]), agent="helper")
        run_id = start(alice)
        engine.run_due()
    assert AgentRun.objects.get(parent_id=run_id).steps == 1


def test_many_starts_at_once_do_not_pass_the_limit(alice, clerk, engine):
    barrier = threading.Barrier(12)
    outcomes = []

    def work():
        barrier.wait()
        try:
            start(alice)
            outcomes.append("started")
        except LimitExceeded:
            outcomes.append("refused")

    threads = [threading.Thread(target=_in_thread, args=(work,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("started") == AgentRun.objects.count() == 5
    assert len(outcomes) == 12


def test_an_inline_run_that_queues_for_its_place_is_alive(alice, clerk, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "INLINE_MAX_CONCURRENCY": 2, "LEASE_SECONDS": 1.0}
    clerk.script(Reply(calls=[("slow_read", {})]), "Done.")
    first = start(alice)
    assert BEGUN.wait(10)
    slots = runner.get(False).slots
    with slots.taken():
        queued = AgentRun.objects.get(pk=start_past_the_gate(alice, slots))
        before = queued.heartbeat_at
        until(lambda: AgentRun.objects.get(pk=queued.pk).heartbeat_at > before, "a sign of life")
        maintain()
        assert AgentRun.objects.get(pk=queued.pk).status == "running"
    from tests.clerk.agents import GO_ON

    GO_ON.set()
    assert ended(first).status == ended(queued.pk).status == "completed"


def start_past_the_gate(user, slots):
    """A start that was let in just before the last place went."""
    slots._used -= 1
    run_id = start(user)
    slots._used += 1
    return run_id


def test_one_job_that_fails_keeps_no_other_from_being_done(monkeypatch, caplog, transactional_db):
    caplog.set_level(logging.CRITICAL, "agora_agent")
    done = []

    def fails():
        raise RuntimeError

    monkeypatch.setattr(maintenance, "JOBS", (fails, lambda: done.append(1)))
    maintain()
    assert done == [1]


def test_durable_runs_go_on_after_durable_runs_were_switched_off(alice, clerk, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "DURABLE": True, "DISPATCHER": "thread"}
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "DURABLE": False}
    from agora_agent.durable import get_engine
    from agora_agent.runners.resolver import serve_engine

    serve_engine()
    try:
        [call] = pending(run_id)
        decide(principal(alice), run_id=run_id, call_id=call.call_id, verdict="approve")
        assert ended(run_id).status == "completed"
    finally:
        get_engine().stop(10)


def test_a_database_that_was_away_fails_no_run(alice, clerk, engine, monkeypatch):
    from django.db import OperationalError

    clerk.script(MAIL, "Sent.")
    real, failed = store.unread, []

    def away(*arguments):
        if not failed:
            failed.append(1)
            error = OperationalError(2013, "database is locked; lost connection")
            error.__cause__ = Exception()
            error.__cause__.sqlstate = "57P01"
            raise error
        return real(*arguments)

    monkeypatch.setattr(store, "unread", away)
    run_id = start(alice)
    engine.run_due()
    assert (failed, AgentRun.objects.get().status) == ([1], "running")
    engine.sweep()
    engine.run_due()
    assert ToolCall.objects.get().status == "pending_approval"
    approve(alice, run_id)
    engine.run_due()
    assert AgentRun.objects.get().status == "completed"
