"""A run that was asked to stop stops, exactly once, and so does what it has begun."""

from __future__ import annotations

import threading

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from agora_agent.durable import faults
from agora_agent.durable.models import Run, Task
from agora_agent.durable.values import LocalStep, TaskSpec
from agora_agent.exceptions import RunCancelled
from agora_agent.ids import new_id
from tests.durable.conftest import Handler, in_thread, journal, row, until

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def payload(signal):
    return signal.payload


def wait(ctx, given):
    return ctx.wait_signal("go", payload)


@pytest.fixture
def ended():
    return []


@pytest.fixture
def noting(make_engine, ended):
    """Engines whose host notes each run that no body ended."""

    def make(workflows, **options):
        return make_engine(workflows=workflows, on_terminal=lambda *end: ended.append(end[:3]), **options)

    return make


@pytest.mark.parametrize("parked", [False, True])
def test_a_run_that_nobody_drives_ends_at_once(noting, ended, begin, parked):
    engine = noting({"flow": wait})
    run = begin(engine)
    if parked:
        engine.drive(run)
    assert engine.cancel(run, by="user:7", reason="changed my mind")
    assert ended == [(run, "cancelled", "")]
    after = row(run)
    assert (after.status, after.cancel_by, after.cancel_reason) == (
        "cancelled",
        "user:7",
        "changed my mind",
    )
    assert not engine.drive(run)
    assert engine.signal(run, "go", 1, dedupe="1") == "gone"
    assert not engine.cancel(run)
    assert len(ended) == 1
    assert not engine.cancel(new_id())


def test_a_cancel_joins_the_callers_transaction(noting, ended, begin):
    engine = noting({"flow": wait})
    run = begin(engine)
    with transaction.atomic():
        assert engine.cancel(run)
        transaction.set_rollback(True)
    assert row(run).status == "ready"


@committed
def test_the_hosts_part_comes_first_and_is_undone_if_the_run_was_claimed_meanwhile(make_engine, begin):
    calls = []

    def on_terminal(run_id, status, code, detail):
        assert transaction.get_connection().in_atomic_block
        Group.objects.create(name=f"settled at call {len(calls)}")
        if not calls:
            Run.objects.filter(pk=run_id).update(status="running")
        calls.append(run_id)

    engine = make_engine(workflows={"flow": wait}, on_terminal=on_terminal)
    run = begin(engine)
    assert engine.cancel(run)
    assert row(run).status == "cancelled"
    assert list(Group.objects.values_list("name", flat=True)) == ["settled at call 1"]


@committed
def test_a_cancel_before_the_end_wins_and_the_effects_of_the_end_are_undone(noting, ended, begin):
    web = noting({})

    def flow(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        end = LocalStep(
            "end", lambda _: Group.objects.create(name="end").name, lambda: web.cancel(ctx.run_id)
        )
        ctx.finish(end, "done")

    engine = noting({"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert (engine.status(run), Group.objects.count()) == ("cancelled", 0)
    assert journal(run) == [("000001", "a")]
    assert ended == [(run, "cancelled", "")]


@committed
def test_a_failure_after_a_cancel_is_a_cancel(noting, ended, begin):
    web = noting({})

    def flow(ctx, given):
        web.cancel(ctx.run_id)
        raise ValueError("because it was cancelled")

    engine = noting({"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert ended[-1] == (run, "cancelled", "")
    assert row(run).status == "cancelled"


@committed
@pytest.mark.parametrize("next_thing", ["task", "parallel", "child", "wait"])
def test_after_a_cancel_from_another_process_nothing_begins(noting, ended, begin, next_thing):
    web, handler = noting({}), Handler()

    def flow(ctx, given):
        ctx.step("a", prepare=lambda: web.cancel(ctx.run_id))
        if next_thing == "task":
            ctx.task(TaskSpec("t", "work"))
        elif next_thing == "parallel":
            ctx.parallel([TaskSpec("t", "work"), TaskSpec("u", "work")])
        elif next_thing == "child":
            ctx.child("c", "flow", None)
        else:
            ctx.wait_signal("go", payload)

    engine = noting({"flow": flow}, steps=[handler])
    run = begin(engine)
    engine.drive(run)
    assert row(run).status == "cancelled"
    assert (Run.objects.count(), Task.objects.count(), handler.ran) == (1, 0, [])
    assert ended == [(run, "cancelled", "")]


@committed
def test_a_step_in_this_process_is_stopped_at_once(noting, begin):
    began = threading.Event()

    def work(task, request, control):
        began.set()
        assert control.abort.wait(10)
        raise RunCancelled("stopped")

    engine = noting({"flow": lambda ctx, given: ctx.task(TaskSpec("t", "work"))}, steps=[Handler(work=work)])
    run = begin(engine)
    driver = threading.Thread(target=in_thread, args=(lambda: engine.drive(run),))
    driver.start()
    assert began.wait(10)
    assert engine.cancel(run)
    driver.join(10)
    assert row(run).status == "cancelled"
    assert (Task.objects.get().status, journal(run)) == ("cancelled", [])


@committed
def test_a_step_in_another_process_is_stopped_by_the_heartbeat(noting, begin):
    began = threading.Event()

    def work(task, request, control):
        began.set()
        assert control.abort.wait(10)
        raise RunCancelled("stopped")

    engine = noting({"flow": lambda ctx, given: ctx.task(TaskSpec("t", "work"))}, steps=[Handler(work=work)])
    web = noting({})
    run = begin(engine)
    driver = threading.Thread(target=in_thread, args=(lambda: engine.drive(run),))
    driver.start()
    assert began.wait(10)
    assert web.cancel(run)
    driver.join(10)
    assert row(run).status == "cancelled"
    assert journal(run) == []


@committed
def test_a_step_that_ignores_the_cancel_is_left_to_finish_and_is_recorded(noting, begin):
    web = noting({})

    def work(task, request, control):
        web.cancel(task.run_id)
        return "it happened"

    def flow(ctx, given):
        ctx.task(TaskSpec("t", "work"))
        ctx.step("bookkeeping", prepare=lambda: 1)
        ctx.task(TaskSpec("u", "work"))

    engine = noting({"flow": flow}, steps=[Handler(work=work)])
    run = begin(engine)
    engine.drive(run)
    assert row(run).status == "cancelled"
    assert [name for _, name in journal(run)] == ["t", "bookkeeping"]
    assert Task.objects.count() == 1


@committed
def test_a_late_result_stays_with_its_task_and_not_in_the_journal(noting, begin):
    def work(task, request, control):
        assert engine.cancel(task.run_id)
        return "it happened"

    def flow(ctx, given):
        ctx.parallel([TaskSpec("t", "work"), TaskSpec("u", "work")])

    engine = noting({"flow": flow}, steps=[Handler(work=work)])
    run = begin(engine)
    engine.drive(run)
    engine.execute("task", Task.objects.get(name="t").id)
    task = Task.objects.get(name="t")
    assert (task.status, task.late, "it happened" in task.result) == ("done", True, True)
    assert Task.objects.get(name="u").status == "cancelled"
    assert (row(run).status, journal(run)) == ("cancelled", [])


@committed
def test_broad_excepts_and_finally_blocks_write_nothing_after_a_park(noting, begin):
    def flow(ctx, given):
        try:
            ctx.step("a", prepare=lambda: 1)
            ctx.wait_signal("go", payload)
        except BaseException:
            ctx.step("swallowed", lambda _: Group.objects.create(name="x").name)
        finally:
            ctx.step("finally", lambda _: Group.objects.create(name="y").name)

    engine = noting({"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert (row(run).status, journal(run)) == ("suspended", [("000001", "a")])
    assert Group.objects.count() == 0


@committed
def test_cancel_at_many_moments_gives_one_end(noting, ended, begin):
    web = noting({})

    def flow(ctx, given):
        for index in range(6):
            ctx.step(f"s{index}", prepare=lambda: 1)
        return ctx.finish(LocalStep("end"), "done")

    engine = noting({"flow": flow})
    points = ["after_claim", "after_checkpoint"]
    for point in points:
        run = begin(engine)
        with faults.at(point, lambda run=run: web.cancel(run)):
            engine.drive(run)
        assert row(run).status == "cancelled"
        assert [end for end in ended if end[0] == run] == [(run, "cancelled", "")]
    run = begin(engine)
    engine.drive(run)
    assert not web.cancel(run)
    assert (row(run).status, engine.result(run).output) == ("completed", "done")


@committed
def test_a_cancel_after_the_takeover_is_seen_by_the_next_driver(noting, begin):
    engine = noting({"flow": wait})
    run = begin(engine)
    with faults.at("after_claim", lambda: engine.cancel(run)):
        engine.drive(run)
    until(lambda: row(run).status == "cancelled", 1)
