"""A parent always learns, once, how its child ended."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group

from agora_agent.durable import faults
from agora_agent.durable.models import Journal, Run, Signal
from agora_agent.durable.values import LocalStep, SpawnRefused
from agora_agent.ids import child_id, new_id
from tests.durable.conftest import expire, in_thread, journal, row

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def payload(signal):
    return signal.payload


def parent(ctx, given):
    outcome = ctx.child("delegate", "kid", given, spawn_data={"task": "look"})
    return [outcome.status, outcome.output, outcome.code, outcome.ok]


def kid(ctx, given):
    return ctx.step("k", prepare=lambda: {"doubled": given * 2})


def test_the_childs_output_is_the_parents_value(make_engine, begin):
    spawned = []
    engine = make_engine(workflows={"flow": parent, "kid": kid}, on_spawn=spawned.append)
    run = engine.start("flow", 4, run_id=new_id(), tenant="t", actor_id="a")
    engine.run_due()
    assert engine.result(run).output == ["completed", {"doubled": 8}, "", True]
    [spawn] = spawned
    assert (spawn.parent_id, spawn.root_id, spawn.depth, spawn.name) == (run, run, 1, "delegate")
    assert (spawn.workflow, spawn.input, spawn.data) == ("kid", 4, {"task": "look"})
    child = row(spawn.run_id)
    assert (child.tenant, child.actor_id) == ("t", "a") == (spawn.tenant, spawn.actor_id)
    assert (child.id, child.parent_id, child.depth) == (child_id(run, "000001"), run, 1)
    assert [name for _, name in journal(run)] == ["delegate", f"signal:child:{child.id}"]


def test_children_of_children_end_before_their_parents(make_engine, begin):
    def flow(ctx, given):
        if given["depth"] == 2:
            return ["leaf"]
        below = ctx.child("down", "flow", {"depth": given["depth"] + 1})
        return [given["depth"], *below.output]

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine, given={"depth": 0})
    engine.run_due()
    assert engine.result(run).output == [0, 1, "leaf"]
    assert set(Run.objects.values_list("root_id", "status")) == {(run, "completed")}
    assert sorted(Run.objects.values_list("depth", flat=True)) == [0, 1, 2]


def test_nesting_has_an_end(make_engine, begin):
    def flow(ctx, given):
        outcome = ctx.child("down", "flow", None)
        return [outcome.status, outcome.code, outcome.output]

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.run_due()
    assert Run.objects.count() == 9
    output = engine.result(run).output
    for _ in range(8):
        output = output[2]
    assert output == ["refused", "depth_limit", None]
    assert not Run.objects.exclude(status="completed").exists()


def fail_in_body(ctx, given):
    raise ValueError("no")


def fail_by_itself(ctx, given):
    ctx.fail(
        LocalStep("persist:fail", lambda _: Group.objects.create(name="failed").name), "limit", "too much"
    )


def hang(ctx, given):
    ctx.wait_signal("go", payload)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (fail_in_body, ["failed", None, "run_failed", False]),
        (fail_by_itself, ["failed", None, "limit", False]),
    ],
)
def test_a_failed_child_is_an_outcome(make_engine, begin, body, expected):
    engine = make_engine(workflows={"flow": parent, "kid": body})
    run = begin(engine)
    engine.run_due()
    assert engine.result(run).output == expected


def test_a_cancelled_child_is_an_outcome(make_engine, begin):
    engine = make_engine(workflows={"flow": parent, "kid": hang})
    run = begin(engine)
    engine.run_due()
    assert engine.cancel(child_id(run, "000001"))
    engine.run_due()
    assert engine.result(run).output == ["cancelled", None, "", False]


@committed
def test_a_dead_child_is_an_outcome(make_engine, begin):
    ended = []

    class KilledHere(SystemExit):
        pass

    def poison(ctx, given):
        raise KilledHere

    engine = make_engine(
        workflows={"flow": parent, "kid": poison}, on_terminal=lambda *end: ended.append(end[:3])
    )
    run = begin(engine)
    engine.drive(run)
    child = child_id(run, "000001")
    for _ in range(5):
        Run.objects.filter(pk=child).update(available_at=row(child).created_at)
        with pytest.raises(KilledHere):
            engine.drive(child)
        expire(Run, child)
        engine.sweep()
    assert row(child).status == "dead"
    assert ended == [(child, "dead", "run_failed")]
    engine.run_due()
    assert engine.result(run).output == ["dead", None, "run_failed", False]


def test_a_child_that_the_host_refuses_is_an_outcome_and_leaves_nothing(make_engine, begin):
    def refuse(spawn):
        Group.objects.create(name="undone")
        raise SpawnRefused("too many children", code="limit_exceeded")

    calls = []

    def flow(ctx, given):
        outcome = ctx.child("delegate", "kid", 1)
        calls.append(outcome)
        ctx.wait_signal("go", payload)
        return [outcome.status, outcome.code, outcome.detail]

    engine = make_engine(workflows={"flow": flow, "kid": kid}, on_spawn=refuse)
    run = begin(engine)
    engine.drive(run)
    engine.signal(run, "go", 1, dedupe="1")
    engine.drive(run)
    assert engine.result(run).output == ["refused", "limit_exceeded", "too many children"]
    assert calls[0] == calls[1]
    assert (Run.objects.count(), Group.objects.count()) == (1, 0)


def test_a_child_of_an_unknown_workflow_fails_its_parent_loudly(make_engine, begin):
    engine = make_engine(workflows={"flow": parent})
    run = begin(engine)
    engine.run_due()
    assert engine.result(run).code == "run_failed"
    assert "'kid'" in engine.result(run).detail


@committed
def test_a_cancel_reaches_children_to_any_depth(make_engine, begin):
    def flow(ctx, given):
        if given == 2:
            ctx.wait_signal("go", payload)
        ctx.child("down", "flow", given + 1)

    ended = []
    engine = make_engine(workflows={"flow": flow}, on_terminal=lambda *end: ended.append(end[0]))
    run = begin(engine, given=0)
    engine.run_due()
    assert set(Run.objects.values_list("status", flat=True)) == {"suspended"}
    engine.cancel(run)
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}
    assert [row(pk).depth for pk in ended] == [0, 1, 2]
    assert Signal.objects.filter(consumed_pos="").count() == 0, "a parent that has ended is told nothing"


@committed
def test_children_that_a_crash_left_behind_are_cancelled_by_the_sweeper(make_engine, begin):
    engine = make_engine(workflows={"flow": parent, "kid": hang})
    run = begin(engine)
    engine.run_due()
    Run.objects.filter(pk=run).update(status="failed", finished_at=row(run).created_at)
    assert engine.sweep().cancelled == 1
    assert row(child_id(run, "000001")).status == "cancelled"


@committed
def test_a_child_that_ends_while_its_parent_parks_is_not_missed(make_engine, begin):
    engine = make_engine(workflows={"flow": parent, "kid": kid})
    run = begin(engine, given=1)
    done = []

    def end_child():
        if not done:
            done.append(in_thread(lambda: engine.drive(child_id(run, "000001"))))

    with faults.at("before_park", end_child):
        engine.drive(run)
    assert done == [True]
    assert engine.result(run).output == ["completed", {"doubled": 2}, "", True]


@committed
def test_a_cancel_between_the_claim_and_the_spawn_refuses_the_child(make_engine, begin):
    web = make_engine(workflows={})

    def flow(ctx, given):
        ctx.step("a", prepare=lambda: web.cancel(ctx.run_id))
        ctx.child("delegate", "kid", 1)

    spawned = []
    engine = make_engine(workflows={"flow": flow, "kid": kid}, on_spawn=spawned.append)
    run = begin(engine)
    engine.drive(run)
    assert (row(run).status, Run.objects.count()) == ("cancelled", 1)
    assert Journal.objects.filter(kind="child").count() == 0
