"""The server hangs up, in the middle of work or between a commit and its acknowledgement."""

from __future__ import annotations

import itertools
import os
import socket

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection

from agora_agent.durable import faults
from agora_agent.durable.models import Task
from agora_agent.durable.values import LocalStep, TaskSpec
from tests.durable.conftest import Handler, in_thread, journal, row

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server that could hang up"),
]


def hang_up():
    """End this thread's session from another one."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [pid] = cursor.fetchone()
        statement = f"SELECT pg_terminate_backend({pid})"
    else:
        statement = f"KILL {connection.connection.thread_id()}"
    in_thread(lambda: connection.cursor().execute(statement))


def lost():
    if connection.vendor == "mysql":
        return OperationalError(2013, "Lost connection to server during query")
    import psycopg

    error = OperationalError("terminating connection")
    error.__cause__ = psycopg.errors.AdminShutdown("terminating connection")
    return error


def flow(ctx, given):
    ctx.step("plain", prepare=lambda: 1)
    ctx.step("effect", lambda _: Group.objects.create(name=f"effect {Group.objects.count()}").name)
    ctx.task(TaskSpec("t", "work", "paid", mode="at_most_once"))
    ctx.parallel([TaskSpec("u", "work", 1), TaskSpec("v", "work", 2)])
    ctx.child("c", "kid", 1)
    answer = ctx.wait_signal("go", lambda signal: signal.payload)
    return ctx.finish(LocalStep("end", lambda _: Group.objects.create(name="end").name), answer)


NAMES = ["plain", "effect", "t", "u", "v", "c", "signal", "signal:go", "end"]


@pytest.mark.parametrize("where", ["drive", "task"])
def test_a_connection_that_died_during_long_work_does_not_lose_its_result(make_engine, begin, where):
    def work(*_):
        hang_up()
        return "done"

    def flow(ctx, given):
        if where == "task":
            return ctx.task(TaskSpec("t", "work", mode="at_most_once")).value
        return ctx.step("s", lambda value: Group.objects.create(name=value).name, prepare=work)

    engine = make_engine(workflows={"flow": flow}, steps=[Handler(work=work)])
    run = begin(engine)
    engine.drive(run)
    assert engine.result(run).output == "done"
    assert row(run).epoch == 1


def test_a_commit_whose_acknowledgement_is_lost_is_recognised_as_our_own(make_engine, begin):
    """The connection is lost after each commit in turn: nothing is done twice, nothing is left out."""
    handler = Handler()
    for nth in itertools.count(1):
        Group.objects.all().delete()
        handler.ran.clear()
        left = itertools.count(nth, -1)
        fired = []

        def lose(left=left, fired=fired):
            if next(left) == 1:
                fired.append(1)
                raise lost()

        engine = make_engine(workflows={"flow": flow, "kid": lambda ctx, given: given}, steps=[handler])
        run = begin(engine)
        with faults.at("before_acknowledge", lose):
            engine.run_due()
            engine.sweep()
        engine.signal(run, "go", "yes", dedupe="1")
        with faults.at("before_acknowledge", lose):
            engine.run_due()
        assert engine.result(run).output == "yes", f"after commit {nth}"
        assert [name.split(":child")[0] for _, name in journal(run)] == NAMES
        assert sorted(Group.objects.values_list("name", flat=True)) == ["effect 0", "end"]
        assert sorted(task.name for task in handler.ran) == ["t", "u", "v"]
        assert set(Task.objects.filter(run_id=run).values_list("status", "attempts")) == {("done", 1)}
        assert row(run).crashes == 0
        if not fired:
            break
    assert nth > 15


@pytest.mark.postgres
def test_a_connection_that_breaks_off_in_a_transaction_is_tried_again(make_engine, begin):
    """Not the server's word (that has a state) but the wire's: the socket is gone."""
    cut = []

    def commit(_):
        group = Group.objects.create(name=f"try {len(cut)}")
        if len(cut) < 2:
            cut.append(1)
            break_wire()
        return group.name

    def flow(ctx, given):
        return ctx.step("s", commit)

    engine = make_engine(workflows={"flow": flow})
    run = begin(engine)
    engine.drive(run)
    assert engine.result(run).output == "try 2"
    assert list(Group.objects.values_list("name", flat=True)) == ["try 2"]


@pytest.mark.postgres
def test_a_sweeper_whose_connection_broke_off_reads_again_in_its_next_pass(make_engine):
    engine = make_engine()
    assert engine.sweep().errors == []
    break_wire()
    engine.sweep()
    assert engine.sweep().errors == []


def break_wire():
    wire = socket.socket(fileno=os.dup(connection.connection.pgconn.socket))
    wire.shutdown(socket.SHUT_RDWR)
    wire.close()
