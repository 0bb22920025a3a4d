"""Dispatched steps: on the spot, side by side, refused, tried again, in doubt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agora_agent.db import DbNow
from agora_agent.durable import faults
from agora_agent.durable.models import Task
from agora_agent.durable.values import StepRefused, TaskOutcome, TaskSpec
from agora_agent.exceptions import Fenced, ModelFailed
from tests.durable.conftest import Handler, expire, in_thread, journal, row, side_by_side

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def one(spec):
    return {"flow": lambda ctx, given: ctx.task(spec).stored()}


def many(count, **options):
    def flow(ctx, given):
        outcomes = ctx.parallel([TaskSpec(f"t{i}", "work", i, **options) for i in range(count)])
        return [outcome.value if outcome.ok else outcome.code for outcome in outcomes]

    return {"flow": flow}


def task_of(run, index=0):
    return Task.objects.filter(run_id=run).order_by("pos")[index]


def outcome_of(engine, run):
    return TaskOutcome(**engine.result(run).output)


def append(control):
    """A live frame, as a step writes it."""
    with transaction.atomic():
        Group.objects.create(name="frame")
        control.guard()


def due_now():
    Task.objects.update(available_at=DbNow())


def test_one_task_is_executed_by_the_drive_that_dispatches_it(make_engine, begin):
    handler = Handler(work=lambda task, request, control: {"twice": request * 2})
    engine = make_engine(workflows=one(TaskSpec("t", "work", 21)), steps=[handler])
    run = begin(engine)
    engine.drive(run)
    assert outcome_of(engine, run) == TaskOutcome(True, {"twice": 42})
    [info] = handler.ran
    assert (info.attempt, info.epoch, info.pos, info.mode) == (1, 1, "000001", "at_least_once")
    assert task_of(run).status == "done"
    assert row(run).doorbell == 1, "only the end moved it: a driver does not ring for itself"


def test_a_task_of_a_queue_that_is_not_served_here_parks_the_run(make_engine, begin):
    flow = one(TaskSpec("t", "work", 1, queue="gpu"))
    web = make_engine(workflows=flow, steps=[Handler()], queues={"default"})
    gpu = make_engine(workflows=flow, steps=[Handler()], queues={"gpu"})
    run = begin(web)
    web.drive(run)
    assert (row(run).status, row(run).wait_kind, row(run).wait_key) == ("suspended", "tasks", "t")
    assert not web.execute("task", task_of(run).id)
    assert gpu.run_due() == 1
    assert not gpu.drive(run), "the run is on the default queue"
    assert web.run_due() == 1
    assert outcome_of(web, run).value == 1


def test_a_process_without_the_step_leaves_the_task_to_others(make_engine, begin):
    flow = one(TaskSpec("t", "work", 1))
    web, worker = make_engine(workflows=flow), make_engine(workflows=flow, steps=[Handler()])
    run = begin(web)
    assert web.run_due() == 1
    assert web.status(run) == "suspended"
    worker.run_due()
    assert outcome_of(web, run).ok


def test_the_claim_of_the_host_and_of_the_engine_are_one_transaction(make_engine, begin):
    def gate(task, request):
        assert transaction.get_connection().in_atomic_block
        Group.objects.create(name=f"claimed by attempt {task.attempt}")

    def work(task, request, control):
        assert Group.objects.count() == 1
        return "done"

    engine = make_engine(workflows=one(TaskSpec("t", "work")), steps=[Handler(gate=gate, work=work)])
    run = begin(engine)
    engine.drive(run)
    assert outcome_of(engine, run).value == "done"


def test_a_host_claim_is_undone_if_the_task_is_somebody_elses(make_engine, begin):
    def steal(task, request):
        Group.objects.create(name="claimed")
        Task.objects.filter(pk=task.id).update(epoch=9)

    engine = make_engine(workflows=one(TaskSpec("t", "work")), steps=[Handler(gate=steal)])
    run = begin(engine)
    engine.drive(run)
    assert (engine.status(run), Group.objects.count(), task_of(run).epoch) == ("suspended", 0, 0)


def test_a_refused_step_runs_nothing_and_its_value_is_recorded(make_engine, begin):
    def refuse(task, request):
        Group.objects.create(name="undone")
        raise StepRefused({"status": "refused", "why": "permission withdrawn"})

    handler = Handler(gate=refuse)
    spec = TaskSpec("t", "work", mode="at_most_once")
    engine = make_engine(workflows=one(spec), steps=[handler])
    run = begin(engine)
    engine.drive(run)
    assert outcome_of(engine, run).value == {"status": "refused", "why": "permission withdrawn"}
    assert (handler.ran, Group.objects.count(), task_of(run).status) == ([], 0, "done")


@dataclass
class Asking(Handler):
    """A handler that asks before the claim."""

    ask: Callable[..., None] = lambda task, request: None

    def prepare(self, task, request):
        self.ask(task, request)


@committed
def test_what_a_step_asks_first_is_asked_before_the_claim_and_holds_nothing(make_engine, begin):
    seen = []

    def look(when):
        def look(task, request):
            seen.append((when, connection.in_atomic_block, task.attempt, request, task_of(run).status))

        return look

    handler = Asking(ask=look("prepare"), gate=look("claim"))
    engine = make_engine(workflows=one(TaskSpec("t", "work", 7)), steps=[handler])
    run = begin(engine)
    engine.drive(run)
    assert seen == [("prepare", False, 1, 7, "queued"), ("claim", True, 1, 7, "queued")]
    assert outcome_of(engine, run).value == 7


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_step_that_is_refused_before_its_claim_is_never_claimed(make_engine, begin, mode):
    def refuse(task, request):
        raise StepRefused("no")

    claimed = []
    handler = Asking(ask=refuse, gate=lambda task, request: claimed.append(task))
    engine = make_engine(workflows=one(TaskSpec("t", "work", mode=mode)), steps=[handler])
    run = begin(engine)
    engine.drive(run)
    assert outcome_of(engine, run) == TaskOutcome(True, "no")
    assert (handler.ran, claimed, task_of(run).status) == ([], [], "done")


def test_a_step_that_fails_before_its_claim_is_tried_again_as_any_other(make_engine, begin):
    tries = []

    def ask(task, request):
        tries.append(task.attempt)
        if len(tries) == 1:
            raise ModelFailed(retryable=True)
        raise RuntimeError("no idea")

    handler = Asking(ask=ask)
    engine = make_engine(workflows=one(TaskSpec("t", "work")), steps=[handler])
    run = begin(engine)
    engine.run_due()
    Task.objects.update(available_at=DbNow())
    engine.run_due()
    assert (outcome_of(engine, run).code, tries, handler.ran) == ("step_failed", [1, 2], [])


def test_a_failing_step_is_an_outcome_and_leaves_its_siblings_alone(make_engine, begin):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    def work(task, request, control):
        raise [Mute(), RuntimeError(), asyncio.CancelledError(), SystemExit(3)][request]

    engine = make_engine(
        workflows={
            "flow": lambda ctx, given: [
                outcome.stored()
                for outcome in ctx.parallel(
                    [*[TaskSpec(f"bad{i}", "work", i) for i in range(4)], TaskSpec("good", "fine", 1)]
                )
            ]
        },
        steps=[Handler(work=work), Handler("fine")],
    )
    run = begin(engine)
    engine.run_due()
    *bad, good = [TaskOutcome(**stored) for stored in engine.result(run).output]
    assert good == TaskOutcome(True, 1)
    assert {outcome.code for outcome in bad} == {"step_failed"}
    assert [outcome.message for outcome in bad] == ["Mute", "RuntimeError", "CancelledError", "SystemExit: 3"]


def test_a_result_that_cannot_be_stored_is_a_failed_step(make_engine, begin):
    engine = make_engine(
        workflows=one(TaskSpec("t", "work")), steps=[Handler(work=lambda *_: {"nan": float("nan")})]
    )
    run = begin(engine)
    engine.drive(run)
    assert outcome_of(engine, run).code == "step_failed"
    assert "NaN" in outcome_of(engine, run).message


def test_a_retryable_failure_is_tried_again_later_and_then_given_up(make_engine, begin):
    def work(task, request, control):
        raise ModelFailed("overloaded", retryable=True)

    handler = Handler(work=work)
    engine = make_engine(workflows=one(TaskSpec("t", "work", max_attempts=3)), steps=[handler])
    run = begin(engine)
    engine.run_due()
    assert (task_of(run).status, task_of(run).attempts, engine.status(run)) == ("queued", 1, "suspended")
    assert engine.run_due() == 0, "not before its time"
    due_now()
    engine.run_due()
    assert (task_of(run).status, task_of(run).attempts) == ("queued", 2)
    due_now()
    engine.run_due()
    assert outcome_of(engine, run).code == "step_failed"
    assert "overloaded" in outcome_of(engine, run).message
    assert [info.attempt for info in handler.ran] == [1, 2, 3]


def test_a_retryable_failure_at_the_claim_counts_as_an_attempt(make_engine, begin):
    def gate(task, request):
        raise ModelFailed("no capacity", retryable=True)

    engine = make_engine(workflows=one(TaskSpec("t", "work", max_attempts=2)), steps=[Handler(gate=gate)])
    run = begin(engine)
    engine.run_due()
    assert (task_of(run).status, task_of(run).attempts) == ("queued", 1)
    due_now()
    engine.run_due()
    assert outcome_of(engine, run).code == "step_failed"


def test_an_at_most_once_step_is_not_tried_again_even_if_it_asks(make_engine, begin):
    def work(task, request, control):
        raise ModelFailed("maybe it arrived", retryable=True)

    handler = Handler(work=work)
    spec = TaskSpec("t", "work", mode="at_most_once", max_attempts=3)
    engine = make_engine(workflows=one(spec), steps=[handler])
    run = begin(engine)
    engine.run_due()
    assert (outcome_of(engine, run).code, len(handler.ran)) == ("step_failed", 1)


@committed
@pytest.mark.parametrize(
    ("mode", "max_attempts", "code", "status"),
    [("at_most_once", 3, "in_doubt", "in_doubt"), ("at_least_once", 1, "lost", "done")],
)
def test_a_step_whose_process_is_gone_becomes_an_outcome(
    make_engine, begin, mode, max_attempts, code, status
):
    def work(task, request, control):
        expire(Task, task.id)
        later.sweep()
        return "too late"

    spec = TaskSpec("t", "work", mode=mode, max_attempts=max_attempts)
    engine = make_engine(workflows=one(spec), steps=[Handler(work=work)])
    later = make_engine(workflows=one(spec), steps=[Handler()])
    run = begin(engine)
    engine.drive(run)
    later.run_due()
    assert outcome_of(engine, run).code == code
    assert task_of(run).status == status


@committed
def test_an_expired_attempt_writes_nothing_and_the_next_one_stands(make_engine, begin):
    def work(task, request, control):
        if task.attempt == 1:
            expire(Task, task.id)
            assert later.sweep().requeued_tasks == 1
            assert later.run_due() == 1
            with pytest.raises(Fenced):
                append(control)
        return f"attempt {task.attempt}"

    engine = make_engine(workflows=one(TaskSpec("t", "work")), steps=[Handler(work=work)])
    later = make_engine(workflows=one(TaskSpec("t", "work")), steps=[Handler(work=work)])
    run = begin(engine)
    engine.drive(run)
    engine.run_due()
    assert outcome_of(engine, run).value == "attempt 2"
    assert Group.objects.count() == 0


@committed
def test_the_guard_lets_the_owner_write(make_engine, begin):
    def work(task, request, control):
        append(control)

    engine = make_engine(workflows=one(TaskSpec("t", "work")), steps=[Handler(work=work)])
    engine.drive(begin(engine))
    assert Group.objects.count() == 1


@committed
def test_eight_finishers_at_once_wake_the_run_exactly_once(make_engine, begin):
    handler = Handler(work=lambda task, request, control: request * 10)
    engine = make_engine(workflows=many(8), steps=[handler])
    for _ in range(3):
        run = begin(engine)
        engine.drive(run)
        assert (row(run).status, row(run).pending_tasks) == ("suspended", 8)
        engine.dispatcher.hints.clear()
        ids = list(Task.objects.filter(run_id=run).order_by("pos").values_list("id", flat=True))
        twice = [*ids, ids[3]]
        side_by_side([lambda task=task: engine.execute("task", task) for task in twice])
        assert (row(run).status, row(run).pending_tasks) == ("ready", 0)
        assert ("run", run) in engine.dispatcher.hints
        engine.drive(run)
        assert engine.result(run).output == [0, 10, 20, 30, 40, 50, 60, 70]
    assert len(handler.ran) == 24


def test_the_run_wakes_only_with_its_last_task(make_engine, begin):
    engine = make_engine(workflows=many(3), steps=[Handler()])
    run = begin(engine)
    engine.drive(run)
    for index, status in enumerate(["suspended", "suspended", "ready"]):
        engine.execute("task", task_of(run, index).id)
        assert (row(run).status, row(run).pending_tasks) == (status, 2 - index)


def test_results_come_in_the_order_asked_and_positions_in_call_order(make_engine, begin):
    engine = make_engine(workflows=many(3), steps=[Handler()])
    run = begin(engine)
    engine.drive(run)
    for index in (2, 0, 1):
        engine.execute("task", task_of(run, index).id)
    engine.drive(run)
    assert engine.result(run).output == [0, 1, 2]
    assert journal(run) == [("000001.0000", "t0"), ("000001.0001", "t1"), ("000001.0002", "t2")]


def test_an_empty_block_takes_no_position(make_engine, begin):
    def flow(ctx, given):
        return [ctx.parallel([]), ctx.group([]), ctx.step("s", prepare=lambda: 1)]

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert journal(run) == [("000001", "s")]


@committed
def test_a_finish_while_the_run_is_driven_makes_it_look_again_instead_of_parking(make_engine, begin):
    engine = make_engine(workflows=many(2), steps=[Handler()])
    run = begin(engine)

    def finish_all():
        for index in range(2):
            in_thread(lambda index=index: engine.execute("task", task_of(run, index).id))

    with faults.at("before_park", finish_all):
        engine.drive(run)
    assert engine.result(run).output == [0, 1]
    assert row(run).epoch == 1


@committed
def test_a_task_does_not_start_once_its_run_was_asked_to_stop(make_engine, begin):
    handler = Handler()
    worker = make_engine(workflows=many(2), steps=[handler])

    def flow(ctx, given):
        ctx.parallel([TaskSpec(f"t{i}", "work", i) for i in range(2)])

    web = make_engine(workflows={"flow": flow})
    run = begin(web)

    def cancel_then_work():
        assert web.cancel(run)
        worker.run_due()

    with faults.at("before_park", cancel_then_work):
        web.drive(run)
    assert (web.status(run), handler.ran) == ("cancelled", [])
    assert set(Task.objects.values_list("status", flat=True)) == {"cancelled"}


@committed
def test_mysql_reads_the_status_before_it_is_changed(make_engine, begin):
    engine = make_engine(workflows=many(2), steps=[Handler()])
    run = begin(engine)
    engine.drive(run)
    with CaptureQueriesContext(connection) as captured:
        engine.execute("task", task_of(run).id)
    [update] = [
        query["sql"]
        for query in captured
        if query["sql"].startswith(("UPDATE `agora_run`", 'UPDATE "agora_run"'))
    ]
    assigned = re.findall(r'(?<!\.)"(\w+)" = ', update.replace("`", '"').split(" WHERE ")[0])
    assert assigned == ["available_at", "status", "doorbell", "pending_tasks"]
