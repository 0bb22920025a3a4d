"""A fact sent to a run is consumed exactly once, whenever it arrives."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from agora_agent.durable import faults
from agora_agent.durable.models import Run, Signal
from agora_agent.durable.values import LocalStep
from agora_agent.ids import new_id
from tests.durable.conftest import expire, in_thread, journal, row, side_by_side

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def payload(signal):
    return signal.payload


def wait(ctx, given):
    return ctx.wait_signal("go", payload)


def test_a_signal_before_the_wait_is_kept_for_it(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    assert engine.signal(run, "go", {"x": 1}, dedupe="1") == "delivered"
    engine.drive(run)
    assert engine.result(run).output == {"x": 1}


def test_a_signal_is_sent_once_and_not_to_a_run_that_has_ended(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    assert engine.signal(run, "go", "first", dedupe="1") == "delivered"
    assert engine.signal(run, "go", "second", dedupe="1") == "duplicate"
    engine.drive(run)
    assert engine.result(run).output == "first"
    assert engine.signal(run, "go", "late", dedupe="2") == "gone"
    assert engine.signal(new_id(), "go", dedupe="1") == "gone"
    assert Signal.objects.count() == 1


def test_a_signal_of_another_key_wakes_the_run_and_is_left_alone(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    engine.drive(run)
    engine.signal(run, "steer", "left", dedupe="1")
    assert row(run).status == "ready"
    engine.drive(run)
    assert (row(run).status, row(run).wait_key) == ("suspended", "go")
    assert engine.sweep().lost_wakes == 0
    assert row(run).status == "suspended"


def test_two_waits_take_two_signals_in_order(make_engine, begin):
    def flow(ctx, given):
        return [ctx.wait_signal("go", payload), ctx.wait_signal("go", payload)]

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.drive(run)
    engine.signal(run, "go", "a", dedupe="1")
    engine.drive(run)
    assert row(run).status == "suspended"
    engine.signal(run, "go", "b", dedupe="2")
    engine.drive(run)
    assert engine.result(run).output == ["a", "b"]


def test_a_signal_without_a_fact_is_dropped_and_spends_nothing(make_engine, begin):
    def flow(ctx, given):
        return ctx.wait_signal("go", lambda signal: Group.objects.values_list("name", flat=True).first())

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert engine.signal(run, "go", {"approved": True}, dedupe="decision-7") == "delivered"
    engine.drive(run)
    assert (row(run).status, journal(run), Signal.objects.count()) == ("suspended", [], 0)
    Group.objects.create(name="approved by a person")
    assert engine.signal(run, "go", dedupe="decision-7") == "delivered"
    engine.drive(run)
    assert engine.result(run).output == "approved by a person"


def test_signals_of_children_cannot_be_sent_by_a_host(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    with pytest.raises(ValueError, match="child"):
        engine.signal(begin(engine), "child:x", dedupe="1")


@committed
def test_a_signal_joins_the_callers_transaction(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    engine.drive(run)
    engine.dispatcher.hints.clear()
    with transaction.atomic():
        assert engine.signal(run, "go", 1, dedupe="1") == "delivered"
        transaction.set_rollback(True)
    assert (row(run).status, engine.dispatcher.hints) == ("suspended", [])
    with transaction.atomic():
        assert engine.signal(run, "go", 1, dedupe="1") == "delivered"
        assert engine.signal(run, "go", 1, dedupe="1") == "duplicate"
        Group.objects.create(name="the caller's own row")
        assert engine.dispatcher.hints == []
    assert engine.dispatcher.hints == [("run", run)]
    assert row(run).status == "ready"
    assert Group.objects.count() == 1


@committed
@pytest.mark.parametrize("point", ["after_claim", "before_park"])
def test_a_signal_at_any_point_around_the_park_is_not_lost(make_engine, begin, point):
    driver, web = make_engine(workflows={"flow": wait}), make_engine(workflows={"flow": wait})
    run = begin(driver)
    number = itertools.count()

    def send():
        if next(number) == 0:
            assert in_thread(lambda: web.signal(run, "go", "yes", dedupe="1")) == "delivered"

    with faults.at(point, send):
        driver.drive(run)
    assert driver.result(run).output == "yes"
    assert row(run).epoch == 1, "found in the same drive"


@committed
def test_signals_racing_with_parks_are_never_lost(make_engine, begin):
    driver, web = make_engine(workflows={"flow": wait}), make_engine(workflows={"flow": wait})
    for _ in range(10):
        run = begin(driver)
        side_by_side([partial(driver.drive, run), partial(web.signal, run, "go", "yes", dedupe="1")])
        assert row(run).status in ("ready", "completed")
        driver.run_due()
        assert driver.result(run).output == "yes"


@committed
def test_a_chatty_inbox_cannot_hold_a_driver(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    engine.dispatcher.hints.clear()
    number = itertools.count()
    with faults.at("before_park", lambda: engine.signal(run, "noise", dedupe=str(next(number)))):
        engine.drive(run)
    assert next(number) == 50
    assert (row(run).status, row(run).owner) == ("ready", "")
    assert engine.drive(run)
    assert row(run).status == "suspended"


@committed
def test_two_drivers_with_one_hint_execute_the_body_once(make_engine, begin):
    entered, bodies = threading.Event(), []

    def flow(ctx, given):
        bodies.append(1)
        entered.set()
        return ctx.step("s", lambda prepared: 1)

    engines = [make_engine(workflows={"flow": flow}) for _ in range(4)]
    run = begin(engines[0])
    claimed = side_by_side([lambda engine=engine: engine.drive(run) for engine in engines])
    assert sorted(claimed) == [False, False, False, True]
    assert bodies == [1]


@committed
def test_a_driver_that_was_taken_over_writes_nothing(make_engine, begin):
    def flow(ctx, given):
        first = ctx.step("first", lambda prepared: prepared, prepare=take_over)
        ctx.wait_signal("go", payload)
        return ctx.finish(LocalStep("end", lambda prepared: None), first)

    done = []

    def take_over():
        if done:
            return "successor"
        done.append(1)
        expire(Run, run)
        assert successor.sweep().taken_over == 1
        assert successor.drive(run)
        return "zombie"

    zombie, successor = make_engine(workflows={"flow": flow}), make_engine(workflows={"flow": flow})
    run = begin(zombie)
    zombie.drive(run)
    assert (row(run).status, row(run).epoch) == ("suspended", 2)
    successor.signal(run, "go", 1, dedupe="1")
    successor.drive(run)
    assert successor.result(run).output == "successor"
    assert row(run).crashes == 1


@committed
def test_a_deadlock_or_a_locked_database_is_tried_again(make_engine, begin):
    tries = itertools.count()

    def commit(prepared):
        if next(tries) < 2:
            Group.objects.create(name="rolled back")
            raise transient()
        return Group.objects.create(name="once").name

    def transient():
        if connection.vendor == "sqlite":
            return OperationalError("database is locked")
        if connection.vendor == "mysql":
            return OperationalError(1213, "Deadlock found when trying to get lock")
        import psycopg

        error = OperationalError("deadlock detected")
        error.__cause__ = psycopg.errors.DeadlockDetected("deadlock detected")
        return error

    prepared = []
    engine = make_engine(
        workflows={"flow": lambda ctx, given: ctx.step("s", commit, prepare=lambda: prepared.append(1))}
    )
    run = begin(engine)
    engine.drive(run)
    assert engine.result(run).output == "once"
    assert (list(Group.objects.values_list("name", flat=True)), prepared) == (["once"], [1])


@committed
def test_a_database_that_stays_away_leaves_the_run_to_the_next_driver(make_engine, begin):
    if connection.vendor != "sqlite":
        pytest.skip("says what SQLite says")
    away = [True]

    def commit(prepared):
        if away[0]:
            raise OperationalError("database is locked")
        return "back"

    engine = make_engine(workflows={"flow": lambda ctx, given: ctx.step("s", commit)})
    run = begin(engine)
    engine.drive(run)
    assert (row(run).status, journal(run)) == ("running", [])
    away[0] = False
    expire(Run, run)
    engine.sweep()
    engine.run_due()
    assert engine.result(run).output == "back"
