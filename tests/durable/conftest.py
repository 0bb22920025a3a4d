"""Engines for tests, each stopped and audited afterwards."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from agora_agent.durable.models import Journal, Run
from agora_agent.durable.values import StepControl, TaskInfo
from agora_agent.durable.workflow import Engine
from agora_agent.ids import new_id
from tests.durable.auditor import audit


class Silent:
    """A dispatcher of a process without a pool: hints are noted, rows wait."""

    embedded = False
    pulls = True

    def __init__(self, *, immediate: bool = False) -> None:
        self.immediate = immediate
        self.hints: list[tuple[str, uuid.UUID]] = []

    def bind(self, engine: Engine) -> None:
        pass

    def hint(self, kind: str, row_id: uuid.UUID, queue: str) -> None:
        self.hints.append((kind, row_id))


@dataclass
class Handler:
    """A step whose claim and work are given by the test, and which notes what it was given."""

    name: str = "work"
    work: Callable[[TaskInfo, Any, StepControl], Any] = lambda task, request, control: request
    gate: Callable[[TaskInfo, Any], None] = lambda task, request: None
    ran: list[TaskInfo] = field(default_factory=list)

    def claim(self, task: TaskInfo, request: Any) -> None:
        self.gate(task, request)

    def run(self, task: TaskInfo, request: Any, control: StepControl) -> Any:
        self.ran.append(task)
        return self.work(task, request, control)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., Engine]]:
    """Engines of as many "processes" as the test needs. They commit where the test's marker says so; elsewhere
    they work, without leases, inside the test's transaction."""
    marker = request.node.get_closest_marker("django_db")
    commits = marker is not None and marker.kwargs.get("transaction", False)
    engines: list[Engine] = []

    def make(dispatcher: Any = None, *, steps: Any = (), **options: Any) -> Engine:
        workflows = options.pop("workflows", {})
        engine = Engine(dispatcher or Silent(immediate=not commits), **options)
        for name, body in workflows.items():
            engine.register_workflow(name, body)
        for step in steps:
            engine.register_step(step)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.stop(5)
    audit()


@pytest.fixture
def begin() -> Callable[..., uuid.UUID]:
    def begin(engine: Engine, workflow: str = "flow", given: Any = None) -> uuid.UUID:
        return engine.start(workflow, given, run_id=new_id())

    return begin


def journal(run_id: uuid.UUID) -> list[tuple[str, str]]:
    """(position, name) of each row."""
    return list(Journal.objects.filter(run_id=run_id).order_by("pos").values_list("pos", "name"))


def row(run_id: uuid.UUID) -> Run:
    return Run.objects.get(pk=run_id)


def until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    """Wait for what other threads or processes bring about."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return value


def in_thread(work: Callable[[], Any]) -> Any:
    """``work()`` as another process would do it: in a thread, on a connection of its own. Waits for it."""
    return side_by_side([work])[0]


def side_by_side(works: list[Callable[[], Any]]) -> list[Any]:
    """All at the same time, each on a connection of its own; their results in order."""
    gate = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def run(index: int, work: Callable[[], Any]) -> None:
        try:
            gate.wait(10)
            results[index] = work()
        except BaseException as error:
            results[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@contextmanager
def statements(count: int) -> Iterator[None]:
    """Exactly so many statements, not counting the bounds of transactions and a new connection's settings."""
    with CaptureQueriesContext(connection) as captured:
        yield
    bounds = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET ")
    sql = [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(bounds)]
    assert len(sql) == count, "\n".join(sql)


def expire(model: Any, row_id: uuid.UUID) -> None:
    """The lease ran out: its process is gone, though this host cannot see that."""
    from agora_agent.durable import store

    model.objects.filter(pk=row_id).update(lease_until=store.after(-1))
