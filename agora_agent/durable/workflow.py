"""The engine as its host sees it."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any, Literal

from django.db import IntegrityError, transaction
from django.db.models import Q

from agora_agent import codec
from agora_agent.durable import driver, endings, faults, lookups, store, sweeper, transactions
from agora_agent.durable.context import Context
from agora_agent.durable.dispatchers.base import Dispatcher
from agora_agent.durable.dispatchers.immediate import ImmediateDispatcher
from agora_agent.durable.leases import LeaseKeeper
from agora_agent.durable.models import Run
from agora_agent.durable.pool import Pool
from agora_agent.durable.values import RunResult, Spawn, StepHandler, SweepReport, TaskSpec
from agora_agent.exceptions import ConfigurationError

Body = Callable[[Context, Any], Any]
Delivery = Literal["delivered", "duplicate", "gone"]

#: How often an embedded pool looks for what nobody hinted.
EMBEDDED_POLL_SECONDS = 1.0
#: A queue whose oldest row has waited so long is not served.
UNSERVED_SECONDS = 60.0


class Engine:
    """Workflows by name, and everything that is done to their runs.

    Args:
        dispatcher: how hints travel; None works them off in the thread that sends them, for tests.
        lease_seconds: a process that does not renew a claim for so long has lost it.
        sweep_seconds: how often this process looks for lost claims.
        step_deadline_seconds: how long one step keeps its claim if it names no deadline.
        queues: those that this process serves; None for all.
        threads: how many drive runs and execute tasks here.
        on_spawn: called first inside the transaction that inserts a child.
        on_terminal: called first inside the transaction that ends a run which no workflow ended.
    """

    def __init__(
        self,
        dispatcher: Dispatcher | None,
        *,
        lease_seconds: float = 30,
        sweep_seconds: float = 5,
        step_deadline_seconds: float = 900,
        queues: set[str] | None = None,
        threads: int = 8,
        on_spawn: Callable[[Spawn], None] | None = None,
        on_terminal: Callable[[uuid.UUID, str, str, str], None] | None = None,
    ) -> None:
        self.dispatcher: Dispatcher = dispatcher or ImmediateDispatcher()
        self.lease_seconds = lease_seconds
        self.sweep_seconds = sweep_seconds
        self.step_deadline_seconds = step_deadline_seconds
        self.queues = queues
        self.threads = threads
        self.on_spawn, self.on_terminal = on_spawn, on_terminal
        #: Whether the engine's transactions must be the outermost: not inside a test case's.
        self.durable = not self.dispatcher.immediate
        self.leases = LeaseKeeper(lease_seconds, beats=self.durable)
        self._bodies: dict[tuple[str, int], Body] = {}
        self._handlers: dict[str, StepHandler] = {}
        self._patches: list[str] = []
        self._pool: Pool | None = None
        self._poll_seconds: float | None = None
        self._lock = threading.Lock()
        self.dispatcher.bind(self)
        _engines.add(self)

    # What this process knows

    def register_workflow(self, name: str, body: Body, version: int = 1) -> None:
        """A workflow's code. Keep an old version registered until none of its runs is live."""
        self._bodies[name, version] = body

    def register_step(self, handler: StepHandler) -> None:
        """Who executes the tasks that name ``handler.name``."""
        self._handlers[handler.name] = handler

    def register_patch(self, patch: str) -> None:
        """A change of a workflow's shape. Append only, in the same order in every process, and for ever."""
        if patch not in self._patches:
            self._patches.append(patch)

    @property
    def patch_count(self) -> int:
        """How many patches this process knows: its patch level."""
        return len(self._patches)

    def patch_number(self, patch: str) -> int:
        """The level from which a run has this patch."""
        try:
            return self._patches.index(patch) + 1
        except ValueError:
            raise ConfigurationError(f"The patch {patch!r} is not registered.") from None

    def body(self, workflow: str, version: int) -> Body:
        """A registered workflow's code."""
        return self._bodies[workflow, version]

    def newest_version(self, workflow: str) -> int | None:
        """The version that a new run gets; None if the workflow is unknown here."""
        return max((version for name, version in self._bodies if name == workflow), default=None)

    def handler(self, step: str) -> StepHandler | None:
        """Who executes a step here, if anybody."""
        return self._handlers.get(step)

    def steps(self) -> list[str]:
        """The steps that this process executes."""
        return list(self._handlers)

    def serves(self, queue: str) -> bool:
        """True if this process works on this queue."""
        return self.queues is None or queue in self.queues

    def executes(self, spec: TaskSpec) -> bool:
        """True if this process may execute such a task."""
        return self.serves(spec.queue) and spec.step in self._handlers

    def claimable(self) -> Q:
        """The runs that this process may drive."""
        return store.claimable(self._bodies, self.patch_count, self.queues)

    # What a host does

    def start(
        self,
        workflow: str,
        input: Any,  # noqa: A002
        *,
        run_id: uuid.UUID,
        queue: str = "default",
        tenant: str = "",
        actor_id: str = "",
    ) -> uuid.UUID:
        """Insert a run, in the caller's transaction if there is one. The same id again gives the same run."""
        version = self.newest_version(workflow)
        if version is None:
            raise ConfigurationError(f"The workflow {workflow!r} is not registered.")
        text = codec.encode(input)

        def work() -> None:
            store.insert_run(run_id, workflow, version, text, queue=queue, tenant=tenant, actor_id=actor_id)
            self.hint_run(run_id, queue)

        try:
            transactions.joined(work, using=store.alias())
        except IntegrityError:
            if lookups.standing(run_id) is None:
                raise
        return run_id

    def signal(
        self, run_id: uuid.UUID, key: str, payload: Any = None, *, dedupe: str, actor: str = ""
    ) -> Delivery:
        """Send a fact to a run, in the caller's transaction if there is one. ``gone``: the run has ended."""
        if key.startswith("child:"):
            raise ValueError("signals of children are the engine's own")
        text = codec.encode(payload)

        def work() -> Delivery:
            if not store.ring(run_id):
                return "gone"
            store.insert_signal(run_id, key, dedupe, text, actor)
            faults.hit("before_signal_commit")
            self.hint_run(run_id)
            return "delivered"

        try:
            return transactions.joined(work, using=store.alias())
        except IntegrityError:
            return "duplicate"

    def cancel(self, run_id: uuid.UUID, *, by: str = "", reason: str = "") -> bool:
        """Stop a run and its children; False if it has ended. A run that nobody drives ends here and now."""
        return endings.cancel(self, run_id, by[:190], reason[:255])

    def is_active(self, run_id: uuid.UUID) -> bool:
        """True if the run exists and has not ended."""
        return self.status(run_id) in Run.LIVE

    def status(self, run_id: uuid.UUID) -> str | None:
        """A run's status."""
        standing = lookups.standing(run_id)
        return standing.status if standing else None

    def result(self, run_id: uuid.UUID) -> RunResult | None:
        """A run's status and what came of it."""
        return lookups.result(run_id)

    def health(self) -> dict[str, Any]:
        """Whether runs get on: the oldest due row's age is the number to watch."""
        state = lookups.health()
        waiting = state.pop("waiting_seconds_by_queue")
        unserved = [queue for queue, seconds in waiting.items() if seconds > UNSERVED_SECONDS]
        return {**state, "queues_unserved": sorted(unserved)}

    # What works on runs

    def drive(self, run_id: uuid.UUID) -> bool:
        """Claim a run and advance it until it parks or ends; False if there was nothing to claim."""
        return driver.drive(self, run_id)

    def run_task(self, task_id: uuid.UUID) -> None:
        """Claim a task and execute it."""
        self.execute("task", task_id)

    def execute(self, kind: Literal["run", "task"], row_id: uuid.UUID) -> bool:
        """Work off one hint; False if it was stale."""
        if kind == "run":
            return driver.drive(self, row_id)
        return driver.execute_task(self, row_id)

    def sweep(self) -> SweepReport:
        """Look once for what nobody works on any more."""
        return sweeper.sweep(self)

    def run_due(self, limit: int = 1000) -> int:
        """Work off, in this thread, whatever is due; how many hints that were."""
        done = 0
        while done < limit:
            due: list[tuple[Literal["run", "task"], uuid.UUID]] = [
                *(("task", task) for task in lookups.due_tasks(self.steps(), self.queues, 1)),
                *(("run", run) for run in lookups.due_runs(self.claimable(), 1)),
            ]
            if not any(self.execute(*item) for item in due):
                return done
            done += 1
        return done

    def serve(self, *, poll_seconds: float | None = None) -> None:
        """Start what belongs in this process, in daemon threads. Idempotent; a forked child starts its own.

        Threads that drive runs if the dispatcher is embedded or ``poll_seconds`` is given (``agora_worker``); only a
        sweeper if runs are driven by a broker's workers; nothing if workers poll for themselves.
        """
        embedded = poll_seconds is not None or self.dispatcher.embedded
        if not embedded and self.dispatcher.pulls:
            return
        with self._lock:
            if self._pool is None:
                self._poll_seconds = poll_seconds
                threads = self.threads if embedded else 0
                self._pool = Pool(self, threads=threads, poll_seconds=poll_seconds or EMBEDDED_POLL_SECONDS)
                self._pool.start()

    def stop(self, timeout: float = 10) -> bool:
        """Claim nothing more, let what runs end, give up what does not; True if all ended in time."""
        with self._lock:
            pool, self._pool = self._pool, None
        return pool.stop(timeout) if pool else True

    # Hints

    def hint_run(self, run_id: uuid.UUID, queue: str = "") -> None:
        """After the commit: this run may be due."""
        self._hint("run", run_id, queue)

    def hint_task(self, task_id: uuid.UUID, queue: str) -> None:
        """After the commit: this task may be due."""
        self._hint("task", task_id, queue)

    def _hint(self, kind: Literal["run", "task"], row_id: uuid.UUID, queue: str) -> None:
        def send() -> None:
            faults.hit("before_hint")
            pool = self._pool
            if pool is not None and pool.size:
                pool.submit(kind, row_id)
            else:
                self.dispatcher.hint(kind, row_id, queue)

        transaction.on_commit(send, using=store.alias(), robust=True)

    def _after_fork(self) -> None:
        # threads do not survive a fork, and a lock may have been held in the parent
        serving, self._pool = self._pool is not None, None
        self._lock = threading.Lock()
        self.leases = LeaseKeeper(self.lease_seconds, beats=self.durable)
        if serving:
            self.serve(poll_seconds=self._poll_seconds)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine._after_fork()


with contextlib.suppress(AttributeError):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
