"""What has been recorded is not done again; what the code asks for must fit what is recorded."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from agora_agent.durable.values import LocalStep, TaskSpec
from agora_agent.exceptions import ConfigurationError, ControlFlow
from agora_agent.ids import new_id
from tests.durable.conftest import Handler, journal, row, statements

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def make_group(name):
    return lambda prepared: Group.objects.create(name=name).name


def pay(signal):
    return signal.payload


def test_completed_steps_are_not_done_again_after_a_wait(make_engine, begin):
    calls = []

    def flow(ctx, given):
        calls.append("body")
        first = ctx.step("first", make_group("one"))
        answer = ctx.wait_signal("go", pay)
        return ctx.finish(LocalStep("end", make_group("end")), [first, answer, given])

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine, given={"n": 1})
    assert engine.drive(run)
    assert engine.status(run) == "suspended"
    assert engine.signal(run, "go", "yes", dedupe="1") == "delivered"
    assert make_engine(workflows={"flow": flow}).drive(run)
    assert engine.result(run).output == ["one", "yes", {"n": 1}]
    assert calls == ["body", "body"]
    assert sorted(Group.objects.values_list("name", flat=True)) == ["end", "one"]
    assert journal(run) == [("000001", "first"), ("000002", "signal:go"), ("000003", "end")]


def test_first_execution_and_replay_hand_on_equal_objects(make_engine, begin):
    seen = []
    value = {
        "at": dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
        "sum": Decimal("1.10"),
        "pair": (1, 2),
        "odd": "a\x00\ud800b",
    }

    def flow(ctx, given):
        seen.append((ctx.step("s", prepare=lambda: value), ctx.task(TaskSpec("t", "work", value)).value))
        ctx.wait_signal("go", pay)

    engine = make_engine(workflows={"flow": flow}, steps=[Handler()])
    run = begin(engine)
    engine.drive(run)
    engine.signal(run, "go", 1, dedupe="1")
    engine.drive(run)
    assert seen[0] == seen[1]
    assert seen[0][0] == {**value, "pair": [1, 2]}
    assert seen[0][1] == seen[0][0]


def test_a_group_is_recorded_whole_or_not_at_all(make_engine, begin):
    def flow(ctx, given):
        steps = [LocalStep("a", make_group("a")), LocalStep("b", make_group("b"))]
        if given["fail"]:
            steps.append(LocalStep("c", lambda prepared: 1 / 0))
        return ctx.group(steps)

    engine = make_engine(workflows={"flow": flow})
    good, bad = begin(engine, given={"fail": False}), begin(engine, given={"fail": True})
    engine.drive(bad)
    assert (engine.status(bad), journal(bad), Group.objects.count()) == ("failed", [], 0)
    assert engine.result(bad).code == "run_failed"
    assert "ZeroDivisionError" in engine.result(bad).detail
    engine.drive(good)
    assert engine.result(good).output == ["a", "b"]
    assert journal(good) == [("000001", "a"), ("000002", "b")]


@committed
def test_prepare_runs_before_the_transaction_and_commit_inside_it(make_engine, begin):
    seen = []

    def where(prepared):
        seen.append(transaction.get_connection().in_atomic_block)
        return prepared

    def flow(ctx, given):
        return ctx.step("s", where, prepare=lambda: where("ready"))

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert (engine.result(run).output, seen) == ("ready", [False, True])


def test_a_value_that_cannot_be_stored_fails_the_run_before_its_effect_stands(make_engine, begin):
    def commit(prepared):
        Group.objects.create(name="effect")
        return {1: object()}

    engine = make_engine(workflows={"flow": lambda ctx, given: ctx.step("s", commit)})
    run = begin(engine)
    engine.drive(run)
    assert (engine.status(run), Group.objects.count(), journal(run)) == ("failed", 0, [])


@pytest.fixture
def diverged(make_engine, begin):
    """Park a run under the old code, drive it under the new; the divergence that it ends with."""

    def diverge(old, new):
        ended = []
        engine = make_engine(workflows={"flow": old}, steps=[Handler()])
        run = begin(engine)
        engine.drive(run)
        assert engine.status(run) == "suspended"
        before = journal(run)
        engine.signal(run, "go", 1, dedupe="1")
        later = make_engine(
            workflows={"flow": new}, steps=[Handler()], on_terminal=lambda *ending: ended.append(ending)
        )
        later.drive(run)
        assert journal(run) == before, "something was written to a journal that has diverged"
        assert Group.objects.count() == 0
        result = engine.result(run)
        assert (result.status, result.code) == ("failed", "replay_diverged")
        assert ended == [(run, "failed", "replay_diverged", result.detail)]
        return result.detail

    return diverge


def old_flow(ctx, given):
    ctx.step("a", prepare=lambda: 1)
    ctx.step("b", prepare=lambda: 2)
    ctx.wait_signal("go", pay)


def test_a_renamed_step_is_refused_with_position_and_both_names(diverged):
    def new(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        ctx.step("renamed", make_group("x"))

    detail = diverged(old_flow, new)
    assert "000002" in detail
    assert "'b'" in detail
    assert "'renamed'" in detail


def test_a_refusal_is_not_answered_with_more_checkpoints(diverged):
    def new(ctx, given):
        try:
            ctx.step("other", make_group("x"))
        except BaseException:
            ctx.fail(LocalStep("persist:fail", make_group("y")), "failed", "swallowed")
        finally:
            with contextlib.suppress(ControlFlow):
                ctx.step("b", make_group("z"))

    assert "'a'" in diverged(old_flow, new)


def test_code_that_ends_before_the_recorded_steps_is_refused(diverged):
    def new(ctx, given):
        return ctx.step("a", prepare=lambda: 1)

    assert "'b'" in diverged(old_flow, new)


def test_finishing_before_the_recorded_steps_is_refused(diverged):
    def new(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        ctx.finish(LocalStep("end", make_group("x")))

    detail = diverged(old_flow, new)
    assert "'b'" in detail
    assert "'end'" in detail


def test_a_step_put_in_front_of_an_open_wait_is_refused(diverged):
    def new(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        ctx.step("b", prepare=lambda: 2)
        ctx.step("new", make_group("x"))
        ctx.wait_signal("go", pay)

    detail = diverged(old_flow, new)
    assert "'signal:go'" in detail
    assert "'new'" in detail


def test_a_recorded_step_does_not_pass_for_a_task_of_the_same_name(diverged):
    def new(ctx, given):
        ctx.task(TaskSpec("a", "work"))

    assert "'task a'" in diverged(old_flow, new)


def test_a_group_around_a_recorded_step_is_refused(diverged):
    def old(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        ctx.step("b", prepare=lambda: 2)
        ctx.task(TaskSpec("t", "elsewhere"))

    def new(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        ctx.group([LocalStep("b", make_group("b")), LocalStep("c", make_group("c"))])

    detail = diverged(old, new)
    assert "'t'" in detail
    assert "'c'" in detail


def block(count, first="p0"):
    names = [first, *(f"p{index}" for index in range(1, count))]

    def flow(ctx, given):
        ctx.parallel([TaskSpec(name, "elsewhere") for name in names])

    return flow


def alone(ctx, given):
    ctx.task(TaskSpec("p0", "elsewhere"))


def test_a_step_in_the_place_of_an_open_block_is_refused(diverged):
    assert "'p0'" in diverged(block(2), lambda ctx, given: ctx.step("s", make_group("x")))


def test_a_block_in_the_place_of_an_open_task_is_refused(diverged):
    assert "'p0'" in diverged(alone, block(2))


def test_a_block_in_the_place_of_a_recorded_step_is_refused(diverged):
    def new(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        block(2)(ctx, given)

    assert "'b'" in diverged(old_flow, new)


def test_an_open_branch_of_another_name_is_refused(diverged):
    assert "'other'" in diverged(block(2), block(2, first="other"))


def test_a_block_that_has_grown_is_refused(diverged):
    assert "'p2'" in diverged(block(2), block(3))


def test_patched_is_true_for_a_fresh_run_and_false_without_a_position_for_an_older_one(make_engine, begin):
    def old(ctx, given):
        ctx.step("a", prepare=lambda: 1)
        ctx.wait_signal("go", pay)
        return "old"

    def new(ctx, given):
        shape = []
        if ctx.patched("extra-step"):
            shape.append(ctx.step("extra", prepare=lambda: 0))
        shape.append(ctx.step("a", prepare=lambda: 1))
        if not given:
            ctx.wait_signal("go", pay)
        return shape

    before = make_engine(workflows={"flow": old})
    older = begin(before)
    before.drive(older)
    after = make_engine(workflows={"flow": new})
    after.register_patch("extra-step")
    fresh = begin(after, given="fresh")
    after.drive(fresh)
    assert after.result(fresh).output == [0, 1]
    after.signal(older, "go", 1, dedupe="1")
    after.drive(older)
    assert after.result(older).output == [1]
    assert [name for _, name in journal(older)] == ["a", "signal:go"]


def test_a_process_that_does_not_know_a_runs_patch_leaves_it_alone(make_engine, begin):
    def flow(ctx, given):
        ctx.wait_signal("go", pay)
        return ctx.patched("p1")

    new, old = make_engine(workflows={"flow": flow}), make_engine(workflows={"flow": flow})
    new.register_patch("p1")
    run = begin(new)
    new.drive(run)
    new.signal(run, "go", 1, dedupe="1")
    assert not old.drive(run)
    assert old.run_due() == 0
    assert new.drive(run)
    assert new.result(run).output is True


def test_a_run_is_left_to_processes_that_know_its_workflow_and_version(make_engine, begin):
    one = make_engine(workflows={"flow": lambda ctx, given: 1})
    run = begin(one)
    two = make_engine(workflows={"other": lambda ctx, given: 2})
    two.register_workflow("flow", lambda ctx, given: 2, version=2)
    assert not two.drive(run)
    newer = begin(two)
    two.register_workflow("flow", lambda ctx, given: 1, version=1)
    two.drive(run)
    two.drive(newer)
    assert (two.result(run).output, two.result(newer).output) == (1, 2)


def test_starting_the_same_run_twice_gives_one_run(make_engine):
    engine = make_engine(workflows={"flow": lambda ctx, given: given})
    run = new_id()
    with transaction.atomic():
        assert engine.start("flow", 1, run_id=run) == run
        assert engine.start("flow", 2, run_id=run) == run
    engine.drive(run)
    assert engine.result(run).output == 1


@committed
def test_a_start_that_is_rolled_back_leaves_nothing_and_hints_nobody(make_engine):
    engine = make_engine(workflows={"flow": lambda ctx, given: given})
    run = new_id()
    with transaction.atomic():
        engine.start("flow", 1, run_id=run)
        transaction.set_rollback(True)
    assert engine.status(run) is None
    assert engine.dispatcher.hints == []
    assert not engine.drive(run)


def test_an_unknown_workflow_cannot_be_started(make_engine):
    with pytest.raises(ConfigurationError):
        make_engine().start("nothing", None, run_id=new_id())


@committed
def test_runs_are_never_driven_inside_a_transaction(make_engine, begin):
    engine = make_engine(workflows={"flow": lambda ctx, given: given})
    run = begin(engine)
    with transaction.atomic(), pytest.raises(transaction.TransactionManagementError):
        engine.drive(run)
    assert engine.status(run) == "ready"


@committed
def test_statement_counts(make_engine, begin):
    counted = {}

    def flow(ctx, given):
        if "first" not in counted:
            counted["first"] = True
            with statements(1):
                ctx.step("plain", prepare=lambda: 1)
            with statements(2):
                ctx.step("effect", make_group("g"))
            with statements(3):
                ctx.group([LocalStep("x", make_group("x")), LocalStep("y", make_group("y"))])
            with statements(2 + 1 + 1 + 3):  # dispatch, read, claim, finish: no ring, no look at the run
                ctx.task(TaskSpec("t", "work"))
        else:
            with statements(0):
                ctx.step("plain", prepare=lambda: 1)
                ctx.step("effect", make_group("g"))
                ctx.group([LocalStep("x", make_group("x")), LocalStep("y", make_group("y"))])
                ctx.task(TaskSpec("t", "work"))
        ctx.wait_signal("go", pay)

    engine = make_engine(workflows={"flow": flow, "idle": lambda ctx, given: ctx.wait_signal("go", pay)})
    engine.register_step(Handler())
    run = begin(engine)
    engine.drive(run)
    assert row(run).status == "suspended", engine.result(run)
    with statements(2):
        engine.signal(run, "go", None, dedupe="1")
    idle = begin(engine, "idle")
    with statements(2 + 1 + 1 + 1):  # claim, journal, signals, park
        engine.drive(idle)
    with statements(1):
        engine.drive(idle)
    engine.drive(run)
    # the forged signal without a value was dropped, so the run waits again
    assert row(run).status == "suspended", engine.result(run)
