"""Real processes, really killed. Another process finishes what they began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from agora_agent.durable.models import Journal, Run, Task
from agora_agent.ids import new_id
from tests.durable import process
from tests.durable.conftest import journal, row, until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def effects(tmp_path, monkeypatch):
    """The lines that all processes of the test have written."""
    file = tmp_path / "effects"
    file.touch()
    monkeypatch.setenv("EFFECTS", str(file))
    return lambda: file.read_text(encoding="utf-8").splitlines()


class Nursery:
    """Forks processes that have Django loaded already: starting each from nothing would take seconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durable.process"],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DATABASE_NAME": str(connection.settings_dict["NAME"]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


class Child:
    """One process, as the test sees it."""

    def __init__(self, nursery, arguments, environment, output):
        self._nursery, self._output, self._code = nursery, output, None
        environment = {key: str(value) for key, value in {**environment, "OUTPUT": output}.items()}
        environment["EFFECTS"] = os.environ["EFFECTS"]
        self.pid = nursery.ask(start=[str(argument) for argument in arguments], env=environment)

    def poll(self):
        if self._code is None:
            self._code = self._nursery.ask(poll=self.pid)
        return self._code

    def wait(self, seconds=30):
        until(lambda: self.poll() is not None, seconds)
        return self._code

    def send(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    @property
    def output(self):
        return self._output.read_text(encoding="utf-8") if self._output.exists() else ""


@pytest.fixture(scope="module")
def nursery():
    """Made at the first use, when the test database is there."""
    made = []

    def get():
        if not made:
            made.append(Nursery())
        return made[0]

    yield get
    for one in made:
        one.close()


@pytest.fixture
def spawn(nursery, effects, tmp_path):
    """Start a process on the test's database."""
    started = []

    def spawn(*arguments, **environment):
        output = tmp_path / f"output-{len(started)}"
        started.append(Child(nursery(), arguments, environment, output))
        return started[-1]

    yield spawn
    for child in started:
        child.send(signal.SIGKILL)
        child.wait()


@pytest.fixture
def engine(make_engine, effects):
    """This process is the one that finishes."""
    made = process.make_engine()
    yield made
    made.stop(5)


def begin(engine, workflow="flow", mode="at_least_once"):
    return engine.start(workflow, {"mode": mode}, run_id=new_id())


def complete(engine, run):
    """Sweep and work as a serving process does, until the run has ended."""

    def ended():
        engine.sweep()
        engine.run_due()
        if row(run).wait_key == "go" and row(run).status == "suspended":
            engine.signal(run, "go", "yes", dedupe="1")
        return not engine.is_active(run)

    until(ended, 30)
    return engine.result(run)


def kill_at(spawn, point, *arguments):
    child = spawn(*arguments, AGORA_FAULT=point)
    assert child.wait() == 137, f"{point} was not reached: {child.output}"


EXPECTED = ["paid 1", "paid r0", "paid r1", "kid", "yes"]
NAMES = ["local", "pay", "read0", "read1", "child", "signal:child", "signal:go", "end"]


def check_whole(engine, run):
    result = complete(engine, run)
    assert (result.status, result.output) == ("completed", EXPECTED)
    names = [name if not name.startswith("signal:child") else "signal:child" for _, name in journal(run)]
    assert names == NAMES
    assert Group.objects.filter(name__startswith=str(run)).count() == 2, "a local effect stands once"
    assert engine.sweep().lost_wakes == 0


# which prepare() and which payments a kill at this point repeats
@pytest.mark.parametrize(
    ("point", "prepared", "payments"),
    [
        ("after_claim", 1, 3),
        ("before_checkpoint", 2, 3),
        ("after_checkpoint", 1, 3),
        ("after_dispatch", 1, 3),
        ("after_dispatch:2", 1, 3),
        ("after_task_claim", 1, 3),
        ("in_step", 1, 4),
        ("after_task_body", 1, 4),
        ("after_task_finish", 1, 3),
        ("after_task_finish:2", 1, 3),
        ("after_task_finish:3", 1, 3),
        ("before_park", 1, 3),
        ("after_spawn", 1, 3),
        ("before_end", 1, 3),
        ("after_end", 1, 3),
    ],
)
def test_a_process_killed_anywhere_is_survived(engine, spawn, effects, point, prepared, payments):
    run = begin(engine)
    kill_at(spawn, point, "work")
    check_whole(engine, run)
    assert effects().count("prepare") == prepared
    paid = [line.split(" attempt ")[0] for line in effects() if line.startswith("pay ")]
    assert (len(paid), len(set(paid))) == (payments, 3), "a repeated payment has the key of the first"


def test_the_takeover_is_fenced_and_counted(engine, spawn, effects):
    run = begin(engine)
    kill_at(spawn, "after_claim", "drive", run)
    assert (row(run).status, row(run).epoch) == ("running", 1)
    engine.sweep()
    assert (row(run).status, row(run).crashes) == ("ready", 1)
    engine.drive(run)
    assert row(run).epoch == 2


@pytest.mark.parametrize(
    ("point", "payments"), [("after_task_claim", 0), ("in_step", 1), ("after_task_body", 1)]
)
def test_an_at_most_once_step_that_was_killed_is_in_doubt_and_never_repeated(
    engine, spawn, effects, point, payments
):
    run = begin(engine, mode="at_most_once")
    kill_at(spawn, point, "work")
    result = complete(engine, run)
    assert result.output == ["in_doubt", *EXPECTED[1:]]
    first = Task.objects.get(run_id=run, pos="000002")
    assert (first.status, first.attempts) == ("in_doubt", 1)
    assert len([line for line in effects() if str(first.id) in line]) == payments


@pytest.mark.parametrize("point", ["before_signal_commit", "before_hint"])
def test_a_sender_killed_around_its_commit_loses_no_wake_up(engine, spawn, effects, point):
    run = begin(engine)
    engine.run_due()
    assert row(run).status == "suspended"
    kill_at(spawn, point, "signal", run)
    assert row(run).status == ("suspended" if point == "before_signal_commit" else "ready")
    check_whole(engine, run)


def test_a_frozen_process_that_wakes_up_changes_nothing(engine, spawn, effects, tmp_path):
    run = begin(engine, "slow")
    zombie = spawn("drive", run, LEASE=1, SAYS="zombie", GO=tmp_path / "go")
    until(lambda: effects() == ["slow"], 30)
    os.kill(zombie.pid, signal.SIGSTOP)
    until(lambda: engine.sweep().taken_over == 1, 15)
    engine.run_due()
    assert engine.result(run).output == "successor"
    before = list(Journal.objects.values())
    ended = Run.objects.filter(pk=run).values().get()
    os.kill(zombie.pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert (zombie.wait(), zombie.output) == (0, ""), "it leaves in silence"
    assert list(Journal.objects.values()) == before
    assert Run.objects.filter(pk=run).values().get() == ended
    assert effects() == ["slow", "slow"]


def test_a_worker_told_to_stop_finishes_what_runs_and_starts_nothing_more(engine, spawn, effects, tmp_path):
    first = begin(engine, "slow")
    worker = spawn("worker", SAYS="finished", GO=tmp_path / "go")
    until(lambda: effects() == ["slow"], 30)
    worker.send(signal.SIGTERM)
    until(lambda: "stopping" in worker.output)
    second = begin(engine, "slow")
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert engine.result(first).output == "finished"
    assert row(second).status == "ready"


def test_a_killed_worker_is_replaced_without_waiting_for_its_lease(engine, spawn, effects, tmp_path):
    run = begin(engine, "slow")
    first = spawn("worker", GO=tmp_path / "never", LEASE=600)
    until(lambda: effects() == ["slow"], 30)
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    second = spawn("worker", SAYS="second", LEASE=600)
    until(lambda: not engine.is_active(run), 30)
    assert engine.result(run).output == "second"
    second.send(signal.SIGTERM)
    assert second.wait() == 0
