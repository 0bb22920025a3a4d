"""Threads that serve, leases that keep, a sweeper that finds what is left."""

from __future__ import annotations

import os
import threading
import time

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from agora_agent.durable import faults, get_engine, owners, set_engine_factory, store
from agora_agent.durable.dispatchers import resolve_dispatcher
from agora_agent.durable.models import Run, Signal, Task
from agora_agent.durable.values import TaskSpec
from agora_agent.exceptions import ConfigurationError
from tests.durable.conftest import Handler, Silent, expire, in_thread, journal, row, until

pytestmark = pytest.mark.django_db(transaction=True)


def payload(signal):
    return signal.payload


def wait(ctx, given):
    return ctx.wait_signal("go", payload)


@pytest.fixture
def threaded(make_engine):
    def make(**options):
        return make_engine(resolve_dispatcher("thread"), threads=3, **options)

    return make


def test_an_embedded_pool_drives_a_run_from_start_to_end(threaded, begin):
    def flow(ctx, given):
        outcomes = ctx.parallel([TaskSpec(f"t{i}", "work", i) for i in range(5)])
        child = ctx.child("c", "kid", 20)
        return [sum(outcome.value for outcome in outcomes), child.output, ctx.wait_signal("go", payload)]

    engine = threaded(workflows={"flow": flow, "kid": lambda ctx, given: given + 1}, steps=[Handler()])
    engine.serve()
    engine.serve()
    run = begin(engine)
    until(lambda: row(run).wait_key == "go" and row(run).status == "suspended")
    engine.signal(run, "go", "now", dedupe="1")
    until(lambda: not engine.is_active(run))
    assert engine.result(run).output == [10, 21, "now"]
    assert engine.stop(5)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("agora-w")] == []


def test_what_a_dead_process_left_is_recovered_within_a_second_of_serving(threaded, begin):
    engine = threaded(workflows={"flow": lambda ctx, given: "recovered"})
    waiting, orphan = begin(engine), begin(engine)
    # a process of this host that has ended: its pid with another start time
    dead = f"{owners.host_prefix()}{os.getpid()}:1:{'0' * 16}"
    Run.objects.filter(pk=orphan).update(status="running", epoch=1, owner=dead, lease_until=store.after(600))
    began = time.monotonic()
    engine.serve()
    until(lambda: not engine.is_active(waiting))
    assert time.monotonic() - began < 2
    if owners.host_prefix():
        until(lambda: not engine.is_active(orphan), 8)
        assert (row(orphan).epoch, row(orphan).crashes) == (2, 1)


def test_a_living_process_of_this_host_is_not_taken_over(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    alive = owners.new_owner()
    assert not owners.is_dead(alive)
    assert not owners.is_dead(alive.replace(owners.host_prefix(), "0" * 32 + ":1:"))
    Run.objects.filter(pk=run).update(status="running", epoch=1, owner=alive, lease_until=store.after(600))
    assert engine.sweep().taken_over == 0
    expire(Run, run)
    assert engine.sweep().taken_over == 1


@pytest.mark.parametrize("where", ["task", "drive"])
def test_a_step_longer_than_its_lease_keeps_it(threaded, begin, where):
    ran, release = [], threading.Event()

    def slow():
        ran.append(1)
        assert release.wait(10)
        return "slow"

    def flow(ctx, given):
        if where == "task":
            return ctx.task(TaskSpec("t", "work")).value
        return ctx.step("s", prepare=slow)

    handler = Handler(work=lambda task, request, control: slow())
    engine = threaded(workflows={"flow": flow}, steps=[handler], lease_seconds=0.6)
    other = threaded(workflows={"flow": flow}, steps=[handler], lease_seconds=0.6)
    engine.serve()
    run = begin(engine)
    until(lambda: ran)
    before = row(run).lease_until
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        report = other.sweep()
        assert (report.taken_over, report.requeued_tasks) == (0, 0)
        time.sleep(0.1)
    assert row(run).lease_until > before
    release.set()
    until(lambda: not engine.is_active(run))
    assert (engine.result(run).output, ran, row(run).epoch) == ("slow", [1], 1)


def test_a_step_that_overruns_its_deadline_loses_its_lease(threaded, begin):
    def work(task, request, control):
        control.abort.wait(10)
        from agora_agent.exceptions import RunCancelled

        raise RunCancelled(control.abort.reason)

    spec = TaskSpec("t", "work", deadline_seconds=0.3, mode="at_most_once")
    engine = threaded(
        workflows={"flow": lambda ctx, given: ctx.task(spec).stored()},
        steps=[Handler(work=work)],
        lease_seconds=3,
    )
    engine.serve()
    run = begin(engine)
    until(lambda: not engine.is_active(run))
    assert engine.result(run).output["code"] == "in_doubt"


def test_stopping_gives_up_what_does_not_end_in_time(threaded, begin):
    began, release = threading.Event(), threading.Event()

    def slow():
        began.set()
        release.wait(10)
        return "first"

    def flow(ctx, given):
        return ctx.step("s", prepare=slow)

    engine = threaded(workflows={"flow": flow})
    engine.serve()
    run = begin(engine)
    assert began.wait(10)
    assert not engine.stop(0.1)
    assert (row(run).status, row(run).owner, row(run).crashes) == ("ready", "", 0)
    release.set()
    other = threaded(workflows={"flow": lambda ctx, given: ctx.step("s", prepare=lambda: "second")})
    other.drive(run)
    assert other.result(run).output == "second"


def test_progress_between_crashes_keeps_a_run_alive(make_engine, begin):
    class KilledHere(SystemExit):
        pass

    def flow(ctx, given):
        for index in range(8):
            ctx.step(f"s{index}", prepare=lambda: 1)
            if f"s{index}" not in killed:
                killed.append(f"s{index}")
                raise KilledHere
        return "through"

    killed = []
    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    for _ in range(8):
        with pytest.raises(KilledHere):
            engine.drive(run)
        expire(Run, run)
        engine.sweep()
        assert row(run).crashes == 1
    engine.drive(run)
    assert engine.result(run).output == "through"


def test_repeated_crashes_are_spaced_out(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    Run.objects.filter(pk=run).update(status="running", epoch=1, owner="x", crashes=2, crash_rows=0)
    expire(Run, run)
    engine.sweep()
    assert (row(run).status, row(run).crashes) == ("ready", 3)
    assert not engine.drive(run)
    assert engine.health()["ready"] == 1


def test_a_parked_run_is_never_taken_for_an_orphan(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    engine.drive(run)
    Run.objects.filter(pk=run).update(created_at="2000-01-01T00:00Z", available_at="2000-01-01T00:00Z")
    report = engine.sweep()
    assert (report.taken_over, report.lost_wakes, report.dead) == (0, 0, 0)
    assert row(run).status == "suspended"


def test_one_row_that_cannot_be_settled_does_not_keep_the_others_waiting(make_engine, begin):
    def on_terminal(run_id, status, code, detail):
        if broken:
            raise OperationalError("the database hiccups")

    broken = [True]
    engine = make_engine(workflows={"flow": wait}, on_terminal=on_terminal)
    first, second, third = [begin(engine) for _ in range(3)]
    Run.objects.update(status="running", epoch=1, owner="gone")
    Run.objects.filter(pk=second).update(crashes=4)
    for run in (first, second, third):
        expire(Run, run)
    report = engine.sweep()
    assert (report.taken_over, len(report.errors)) == (2, 1)
    assert row(second).status == "running"
    broken.clear()
    assert engine.sweep().dead == 1
    assert row(second).status == "dead"


def test_tasks_that_outlived_their_run_are_cancelled(make_engine, begin):
    engine = make_engine(workflows={"flow": lambda ctx, given: ctx.task(TaskSpec("t", "elsewhere"))})
    run = begin(engine)
    engine.drive(run)
    Run.objects.filter(pk=run).update(status="dead", pending_tasks=0, finished_at=row(run).created_at)
    engine.sweep()
    assert Task.objects.get().status == "cancelled"


def test_a_lost_wake_is_healed_and_counted(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    run = begin(engine)
    engine.drive(run)
    # what the protocol forbids: a fact without a ring
    Signal.objects.create(run_id=run, key="go", dedupe="1", payload='"x"')
    assert engine.sweep().lost_wakes == 1
    engine.drive(run)
    assert engine.result(run).output == "x"


def test_hints_that_a_broker_lost_are_sent_again_and_not_too_often(make_engine, begin):
    class Broker(Silent):
        pulls = False

    engine = make_engine(Broker(), workflows={"flow": lambda ctx, given: ctx.task(TaskSpec("t", "x")).ok})
    run = begin(engine)
    engine.dispatcher.hints.clear()
    assert engine.sweep().hinted == 1
    assert engine.sweep().hinted == 0
    assert engine.dispatcher.hints == [("run", run)]
    engine.drive(run)
    engine.dispatcher.hints.clear()
    engine.sweep()
    assert engine.dispatcher.hints == [("task", Task.objects.get().id)]


def test_a_hint_that_cannot_be_sent_does_not_undo_the_commit(make_engine, begin, caplog):
    class Down(Silent):
        def hint(self, kind, row_id, queue):
            raise ConnectionError("the broker is down")

    engine = make_engine(Down(), workflows={"flow": lambda ctx, given: 1})
    run = begin(engine)
    assert row(run).status == "ready"
    assert engine.run_due() == 1
    assert row(run).status == "completed"


def test_django_q_messages_carry_an_id_and_never_raise(make_engine, begin):
    from agora_agent.durable.dispatchers import django_q

    engine = make_engine(workflows={"flow": lambda ctx, given: ctx.task(TaskSpec("t", "work", 3)).value})
    set_engine_factory(lambda: engine)
    try:
        run = begin(engine)
        for _ in range(2):
            assert django_q.on_run(str(run)) is None
        worker = make_engine(workflows={}, steps=[Handler()])
        set_engine_factory(lambda: worker)
        task = Task.objects.get()
        for _ in range(2):
            assert django_q.on_task(str(task.id)) is None
        assert django_q.on_run("not an id") is None
        set_engine_factory(None)
        assert django_q.on_run(str(run)) is None
        engine.drive(run)
        assert engine.result(run).output == 3
    finally:
        set_engine_factory(None)


def test_the_immediate_dispatcher_works_hints_off_in_order(make_engine, begin):
    def flow(ctx, given):
        outcomes = ctx.parallel([TaskSpec(f"t{i}", "work", i) for i in range(2)])
        return [outcome.value for outcome in outcomes] + [ctx.child("c", "kid", None).output]

    engine = make_engine(
        resolve_dispatcher("immediate"),
        workflows={"flow": flow, "kid": lambda ctx, given: "kid"},
        steps=[Handler()],
    )
    run = begin(engine)
    assert engine.result(run).output == [0, 1, "kid"]


def test_a_cancel_in_the_moment_of_the_hint_leaves_a_stale_hint(make_engine, begin):
    engine = make_engine(resolve_dispatcher("immediate"), workflows={"flow": lambda ctx, given: 1})
    with faults.at("before_hint", lambda: engine.cancel(Run.objects.get().id)):
        run = begin(engine)
    assert row(run).status == "cancelled"


def test_dispatchers_by_name_and_by_path():
    assert resolve_dispatcher("thread").embedded
    assert not resolve_dispatcher("worker").embedded
    assert not resolve_dispatcher("django_q").pulls
    assert isinstance(resolve_dispatcher("tests.durable.conftest.Silent"), Silent)
    with pytest.raises(ConfigurationError, match="immediate"):
        resolve_dispatcher("thred")


def test_health_names_what_waits(make_engine, begin):
    engine = make_engine(workflows={"flow": wait})
    parked, ready = begin(engine), begin(engine)
    engine.drive(parked)
    Run.objects.filter(pk=ready).update(available_at=store.after(-100), queue="gpu")
    health = engine.health()
    assert (health["ready"], health["running"], health["suspended"], health["dead"]) == (1, 0, 1, 0)
    assert 100 <= health["oldest_ready_seconds"] < 130
    assert health["queues_unserved"] == ["gpu"]


def test_the_sweep_command_sweeps_once(make_engine, begin, capsys):
    engine = make_engine(workflows={"flow": wait})
    set_engine_factory(lambda: engine)
    try:
        run = begin(engine)
        Run.objects.filter(pk=run).update(status="running", epoch=1, owner="gone")
        expire(Run, run)
        call_command("agora_sweep")
        assert "taken_over 1" in capsys.readouterr().out
        call_command("agora_sweep")
        assert "nothing to do" in capsys.readouterr().out
    finally:
        set_engine_factory(None)
    with pytest.raises(CommandError):
        call_command("agora_sweep")
    with pytest.raises(ConfigurationError):
        get_engine()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_serves_with_threads_of_its_own(threaded, begin):
    if connection.vendor == "sqlite":
        # the parent's connection may not be used across a fork
        connection.close()
    engine = threaded(workflows={"flow": wait})
    engine.serve()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        names = {thread.name for thread in threading.enumerate()}
        os.write(writer, b"1" if {"agora-poller", "agora-sweeper"} <= names else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"


def test_a_lease_says_who_holds_a_run_while_it_works(make_engine, begin):
    held = []

    def flow(ctx, given):
        held.append(in_thread(lambda: row(ctx.run_id)))
        return 1

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert held[0].status == "running"
    assert f":{os.getpid()}:" in held[0].owner
    assert held[0].lease_until is not None
    assert journal(run) == []
