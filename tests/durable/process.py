"""Processes that work on the test's database: ``python -m tests.durable.process`` is their nursery.

The nursery has Django loaded and no connection. Each line on its stdin is a JSON request: ``{"start": [ROLE, RUN],
"env": {…}}`` forks a child and answers its pid; ``{"poll": PID}`` answers its exit code, or null while it lives.
External effects are lines appended to the file that ``EFFECTS`` names; a child's output goes to the file ``OUTPUT``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

import django
from django.conf import settings


def effect(line: str) -> None:
    """Something that no rollback takes back."""
    with Path(os.environ["EFFECTS"]).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


class Pay:
    """A step with an external effect, keyed by the task."""

    name = "pay"

    def claim(self, task: Any, request: Any) -> None:
        """Anybody may pay here."""

    def run(self, task: Any, request: Any, control: Any) -> Any:
        from agora_agent.durable import faults

        effect(f"pay {task.id} attempt {task.attempt}")
        faults.hit("in_step")
        return f"paid {request}"


def flow(ctx: Any, given: Any) -> Any:
    """A little of everything that a turn does."""
    from django.contrib.auth.models import Group

    from agora_agent.durable.values import LocalStep, TaskSpec

    def prepare() -> str:
        effect("prepare")
        return "prepared"

    def commit(prepared: str) -> str:
        return Group.objects.create(name=f"{ctx.run_id} {prepared}").name

    ctx.step("local", commit, prepare=prepare)
    mode = given["mode"]
    paid = ctx.task(TaskSpec("pay", "pay", 1, mode=mode))
    reads = ctx.parallel([TaskSpec(f"read{i}", "pay", f"r{i}", mode=mode) for i in range(2)])
    child = ctx.child("child", "kid", given)
    answer = ctx.wait_signal("go", lambda signal: signal.payload)
    values = [item.value if item.ok else item.code for item in (paid, *reads)]
    end = LocalStep("end", lambda _: Group.objects.create(name=f"{ctx.run_id} end").name)
    return ctx.finish(end, [*values, child.output, answer])


def kid(ctx: Any, given: Any) -> Any:
    """A child with one step."""
    return ctx.step("kid", prepare=lambda: "kid")


def slow(ctx: Any, given: Any) -> Any:
    """A step that waits for the file ``GO`` in the first process, and is quick in every other."""

    def prepare() -> str:
        effect("slow")
        wait_for = os.environ.get("GO")
        while wait_for and not Path(wait_for).exists():
            time.sleep(0.02)
        return os.environ.get("SAYS", "successor")

    return ctx.step("slow", prepare=prepare)


def make_engine(**options: Any) -> Any:
    """The same engine in every process of the test."""
    from agora_agent.durable.dispatchers import resolve_dispatcher
    from agora_agent.durable.workflow import Engine

    engine = Engine(
        resolve_dispatcher("worker"), lease_seconds=float(os.environ.get("LEASE", "30")), **options
    )
    for name, body in (("flow", flow), ("kid", kid), ("slow", slow)):
        engine.register_workflow(name, body)
    engine.register_step(Pay())
    return engine


def main(role: str, *arguments: str) -> None:
    """Do what ``role`` says."""
    engine = make_engine()
    if role == "drive":
        engine.drive(uuid.UUID(arguments[0]))
    elif role == "work":
        while engine.run_due():
            pass
    elif role == "signal":
        engine.signal(uuid.UUID(arguments[0]), "go", "yes", dedupe="1")
    elif role == "worker":
        from django.core.management import call_command

        from agora_agent.durable import set_engine_factory

        set_engine_factory(lambda: engine)
        call_command("agora_worker", threads=2, grace=10)


def child(arguments: list[str], environment: dict[str, str]) -> None:
    """The life of a forked process; never returns."""
    from agora_agent.durable import faults

    code = 1
    try:
        os.environ.update(environment)
        faults.arm(environment.get("AGORA_FAULT", ""))
        output = os.open(environment["OUTPUT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        main(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def nursery() -> None:
    """Serve requests until stdin ends."""
    settings.DATABASES["default"]["NAME"] = os.environ["DATABASE_NAME"]
    django.setup()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                child(request["start"], request["env"])
            answer: int | None = pid
        else:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    nursery()
