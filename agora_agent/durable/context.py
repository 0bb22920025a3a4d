"""What a workflow's code calls: each call takes a position, and a position that the journal holds is not done again.

Why no wake-up is lost: the driver reads the doorbell before the journal and the signals; whoever sends a fact rings
before writing it, in one transaction; parking is conditional on the doorbell that was read. A fact committed before
that reading is found by it; one committed later has moved the doorbell, so the run is replayed instead of parked;
one committed after the parking finds the run suspended and wakes it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from django.db import IntegrityError

from agora_agent import codec
from agora_agent.durable import driver, endings, faults, lookups, store, taskstore, transactions
from agora_agent.durable.leases import Held
from agora_agent.durable.models import MAX_DEPTH, Run
from agora_agent.durable.values import (
    ChildOutcome,
    LocalStep,
    SignalInfo,
    Spawn,
    SpawnRefused,
    TaskOutcome,
    TaskSpec,
)
from agora_agent.exceptions import (
    ConfigurationError,
    ControlFlow,
    Fenced,
    NonDeterminismError,
    RunCancelled,
    WorkflowSuspended,
)
from agora_agent.ids import child_id

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

P = ParamSpec("P")
T = TypeVar("T")


class Again(ControlFlow):
    """Something happened since the journal was read: replay instead of parking."""


class Ended(ControlFlow):
    """The run has been ended by ``finish`` or ``fail``."""


def _durable(
    call: Callable[Concatenate[Context, P], T],
) -> Callable[Concatenate[Context, P], T]:
    """After the first control flow every later call raises the same object and touches nothing, so that neither a
    ``finally`` nor a broad ``except`` in the workflow can write more."""

    @functools.wraps(call)
    def wrapped(self: Context, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.closed is not None:
            raise self.closed
        try:
            return call(self, *args, **kwargs)
        except ControlFlow as flow:
            self.closed = self.closed or flow
            raise

    return wrapped


class Context:
    """One replay of one run. Used from the thread that drives it."""

    def __init__(self, engine: Engine, claim: store.Claim, held: Held) -> None:
        self._engine, self._claim, self._held = engine, claim, held
        self._journal = store.load_journal(claim.run_id)
        self._unused = set(self._journal)
        self._last = max((int(pos[:6]) for pos in self._journal), default=0)
        self._index = 0
        self._pending = claim.pending_tasks
        #: The control flow that ended this replay.
        self.closed: ControlFlow | None = None
        self.run_id: uuid.UUID = claim.run_id
        self.input: Any = codec.decode(claim.input)

    # Local steps

    @_durable
    def step(
        self, name: str, commit: Callable[[Any], Any] | None = None, prepare: Callable[[], Any] | None = None
    ) -> Any:
        """Do a local step once: ``commit``'s effects and the journal row commit together.

        Without ``commit`` the value is what ``prepare`` returns, recorded by a single statement. A step that raises
        records nothing: the workflow can only end then, or diverges at its next replay.
        """
        return self._local([LocalStep(name, commit, prepare)])[0]

    @_durable
    def group(self, steps: Sequence[LocalStep]) -> list[Any]:
        """Several local steps in one transaction: all of them are recorded, or none."""
        return self._local(list(steps)) if steps else []

    @_durable
    def finish(self, step: LocalStep, output: Any = None) -> Any:
        """End the run as completed, with the step's effects, in one transaction. Returns ``output``."""
        return self._end(step, Run.Status.COMPLETED, output, "", "")

    @_durable
    def fail(self, step: LocalStep, code: str, detail: str = "") -> None:
        """End the run as failed, with the step's effects, in one transaction."""
        self._end(step, Run.Status.FAILED, None, code, detail)

    # Tasks

    @_durable
    def task(self, spec: TaskSpec) -> TaskOutcome:
        """One dispatched step. Executed here if this process serves its queue, else by whoever does."""
        return self._join([(self._take(), spec)], alone=True)[0]

    @_durable
    def parallel(self, specs: Sequence[TaskSpec]) -> list[TaskOutcome]:
        """Dispatched steps side by side; their outcomes in the order given."""
        if not specs:
            return []
        block = self._take()
        pairs = [(f"{block}.{index:04d}", spec) for index, spec in enumerate(specs)]
        positions = {pos for pos, _ in pairs}
        for pos in sorted(self._journal):
            if pos.startswith(f"{block}.") and pos not in positions:
                raise NonDeterminismError(pos, self._journal[pos].name, "the end of a parallel block")
        return self._join(pairs, alone=False)

    # Waiting

    @_durable
    def wait_signal(self, key: str, read: Callable[[SignalInfo], Any]) -> Any:
        """Park until a signal under ``key`` gives a value.

        ``read`` looks up the fact behind the signal, inside the transaction that consumes it; None means that there
        is none: the signal is removed and the wait goes on.
        """
        return self._wait(self._take(), key, read)

    @_durable
    def child(self, name: str, workflow: str, input: Any, spawn_data: Any = None) -> ChildOutcome:  # noqa: A002
        """Run another workflow under this one and park until it ends."""
        pos = self._take()
        entry = self._recorded(pos, name, "child")
        spawned = (
            codec.decode(entry.payload) if entry else self._spawn(pos, name, workflow, input, spawn_data)
        )
        child = uuid.UUID(spawned["run_id"])
        if "code" in spawned:
            return ChildOutcome(child, "refused", None, spawned["code"], spawned["detail"])

        def read(_: SignalInfo) -> dict[str, Any] | None:
            ended = lookups.result(child)
            if ended is None or ended.status in Run.LIVE:
                return None
            return {
                "status": ended.status,
                "output": ended.output,
                "code": ended.code,
                "detail": ended.detail,
            }

        return ChildOutcome(child, **self._wait(self._take(), f"child:{child}", read))

    # Questions

    @_durable
    def patched(self, patch: str) -> bool:
        """True if the process of the first claim knew this patch. Takes no position and no statement."""
        return self._engine.patch_number(patch) <= self._claim.patch_level

    @_durable
    def check_cancelled(self) -> None:
        """Leave here if the run was asked to stop or is somebody else's now. No statement."""
        self._alive()
        if self._held.cancelled or self._claim.cancelled:
            raise RunCancelled("the run was cancelled")

    def end(self, output: Any) -> None:
        """The workflow returned: end the run, unless it did so itself."""
        if self.closed is not None:
            raise self.closed
        self._check_leftover("the end of the run")
        self._write_end(LocalStep(""), Run.Status.COMPLETED, output, "", "", None)

    # Positions

    def _take(self) -> str:
        self._index += 1
        return f"{self._index:06d}"

    def _recorded(self, pos: str, name: str, kind: str) -> store.Entry | None:
        entry = self._journal.get(pos)
        if entry is not None:
            if (entry.name, entry.kind) != (name, kind):
                same = entry.name == name
                recorded, asked = (f"{entry.kind} {name}", f"{kind} {name}") if same else (entry.name, name)
                raise NonDeterminismError(pos, recorded, asked)
            self._unused.discard(pos)
            return entry
        if pos == self._claim.wait_pos and self._claim.wait_name != name:
            raise NonDeterminismError(pos, self._claim.wait_name, name)
        if int(pos[:6]) < self._last:
            later = min(other for other in self._unused if other[:6] > pos[:6])
            raise NonDeterminismError(pos, f"nothing here, then {self._journal[later].name} at {later}", name)
        return None

    def _check_leftover(self, asked: str) -> None:
        if self._unused:
            pos = min(self._unused)
            raise NonDeterminismError(pos, self._journal[pos].name, asked)

    def _alive(self) -> None:
        self._held.allow(self._engine.step_deadline_seconds)
        if self._held.lost:
            raise Fenced("the claim is lost")

    def _unwind(self) -> NoReturn:
        """A conditional statement matched no row: cancelled, or not ours any more?"""
        now = store.read_claim(self.run_id, self._claim.owner)
        if now is not None and now.cancelled:
            raise RunCancelled("the run was cancelled")
        raise Fenced("the claim is lost")

    # Writing

    def _local(self, steps: list[LocalStep]) -> list[Any]:
        places = [(self._take(), step) for step in steps]
        found = [self._recorded(pos, step.name, "step") for pos, step in places]
        if all(found):
            return [codec.decode(entry.payload) for entry in found if entry]
        self._alive()
        prepared = [step.prepare() if step.prepare else None for step in steps]

        def work(token: str) -> list[store.Entry]:
            values = [
                step.commit(ready) if step.commit else ready
                for step, ready in zip(steps, prepared, strict=True)
            ]
            return [
                store.Entry(pos, step.name, "step", codec.encode(value), token=token)
                for (pos, step), value in zip(places, values, strict=True)
            ]

        alone = all(step.commit is None for step in steps)
        return self._write([pos for pos, _ in places], work, autocommit=alone)

    def _write(
        self,
        positions: list[str],
        work: Callable[[str], list[store.Entry]],
        *,
        uncancelled: bool = False,
        autocommit: bool = False,
    ) -> list[Any]:
        """Effects, then the fenced insert; the values as a replay will read them."""
        token = store.new_token()

        def attempt() -> list[str]:
            entries = work(token)
            faults.hit("before_checkpoint")
            if not store.insert_fenced(self._claim, entries, uncancelled=uncancelled):
                raise Fenced("the claim is lost")
            return [entry.payload for entry in entries]

        def own() -> list[str] | None:
            rows = [store.entry_at(self.run_id, pos) for pos in positions]
            return [row.payload for row in rows if row and row.token == token] or None

        run = transactions.statement if autocommit else self._transact
        try:
            payloads = run(attempt, using=store.alias(), recognise=own)
        except IntegrityError:
            mine = own()
            if mine is None:
                if any(store.entry_at(self.run_id, pos) for pos in positions):
                    raise Fenced("another driver has recorded this position") from None
                raise
            payloads = mine
        except Fenced:
            if uncancelled:
                self._unwind()
            raise
        faults.hit("after_checkpoint")
        return [codec.decode(text) for text in payloads]

    def _transact(self, work: Callable[[], T], **options: Any) -> T:
        return transactions.transact(work, durable=self._engine.durable, **options)

    def _end(self, step: LocalStep, status: str, output: Any, code: str, detail: str) -> Any:
        pos = self._take()
        self._recorded(pos, step.name, "step")
        self._check_leftover(step.name)
        self._alive()
        self._write_end(step, status, output, code, detail, pos)
        self.closed = Ended()
        return codec.roundtrip(output)

    def _write_end(
        self, step: LocalStep, status: str, output: Any, code: str, detail: str, pos: str | None
    ) -> None:
        text = codec.encode(output)
        prepared = step.prepare() if step.prepare else None
        claim = self._claim

        def work() -> bool:
            value = step.commit(prepared) if step.commit else prepared
            endings.write(
                self._engine,
                self.run_id,
                claim.parent_id,
                status,
                endings.held_by(claim, uncancelled=True),
                output=text,
                code=code,
                detail=detail,
            )
            if pos is not None:
                entry = store.Entry(pos, step.name, "step", codec.encode(value), token=store.new_token())
                store.insert_entry(self.run_id, entry)
            faults.hit("before_end")
            return True

        try:
            self._transact(work, using=store.alias(), recognise=lambda: lookups.ended_by(claim) or None)
        except endings.Refused:
            if not lookups.ended_by(claim):
                self._unwind()
        faults.hit("after_end")

    def _join(self, pairs: list[tuple[str, TaskSpec]], *, alone: bool) -> list[TaskOutcome]:
        found = [self._recorded(pos, spec.name, "task") for pos, spec in pairs]
        missing = [(pos, spec) for (pos, spec), entry in zip(pairs, found, strict=True) if entry is None]
        if not missing:
            return [TaskOutcome(**codec.decode(entry.payload)) for entry in found if entry]
        self.check_cancelled()
        fresh = len(missing) == len(pairs) and not self._dispatched(missing)
        if fresh:
            self._dispatch(missing)
        [first_pos, first] = missing[0]
        task_ids = [taskstore.task_id(self.run_id, pos) for pos, _ in missing]
        if alone and self._engine.executes(first):
            outcome = driver.run_task(self._engine, task_ids[0], driven_by=(self._claim, self._held))
            if outcome is not None:
                return [outcome]
        elif fresh:
            for task in task_ids:
                self._engine.hint_task(task, first.queue)
        raise self._park("tasks", first.name, first_pos)

    def _dispatched(self, missing: list[tuple[str, TaskSpec]]) -> bool:
        """True if these tasks were dispatched by an earlier drive. Asks only if there were open ones at all."""
        if not self._pending:
            return False
        names = taskstore.names_at(self.run_id, [pos for pos, _ in missing])
        for pos, spec in missing:
            if names and names.get(pos) != spec.name:
                raise NonDeterminismError(pos, names.get(pos, "nothing"), spec.name)
        return bool(names)

    def _dispatch(self, places: list[tuple[str, TaskSpec]]) -> None:
        rows = [(pos, spec, codec.encode(spec.request)) for pos, spec in places]

        def work() -> bool:
            if not taskstore.reserve(self._claim, len(rows)):
                raise endings.Refused
            taskstore.insert_tasks(self.run_id, rows)
            return True

        def own() -> bool | None:
            return bool(taskstore.names_at(self.run_id, [places[0][0]])) or None

        try:
            self._transact(work, using=store.alias(), recognise=own)
        except endings.Refused:
            self._unwind()
        faults.hit("after_dispatch")

    def _wait(self, pos: str, key: str, read: Callable[[SignalInfo], Any]) -> Any:
        name = f"signal:{key}"
        entry = self._recorded(pos, name, "signal")
        if entry is not None:
            return codec.decode(entry.payload)
        self.check_cancelled()
        for signal in store.unread(self.run_id, key):
            found = self._consume(signal, pos, name, read)
            if found:
                return found[0]
        raise self._park("signal", key, pos)

    def _consume(
        self, signal: SignalInfo, pos: str, name: str, read: Callable[[SignalInfo], Any]
    ) -> list[Any]:
        """One value, or none if no fact stands behind the signal."""
        token = store.new_token()

        def work() -> list[str]:
            value = read(signal)
            if value is None:
                if not store.holds(self._claim):
                    raise Fenced("the claim is lost")
                store.discard(signal.id)
                return []
            entry = store.Entry(pos, name, "signal", codec.encode(value), token=token)
            if not store.insert_fenced(self._claim, [entry]) or not store.consume(signal.id, pos):
                raise Fenced("the claim is lost")
            return [entry.payload]

        def own() -> list[str] | None:
            row = store.entry_at(self.run_id, pos)
            return [row.payload] if row and row.token == token else None

        payloads = self._transact(work, using=store.alias(), recognise=own)
        faults.hit("after_consume")
        return [codec.decode(text) for text in payloads]

    def _spawn(self, pos: str, name: str, workflow: str, given: Any, data: Any) -> dict[str, Any]:
        self.check_cancelled()
        engine, claim = self._engine, self._claim
        child = child_id(self.run_id, pos)
        version = engine.newest_version(workflow)
        if version is None:
            raise ConfigurationError(f"The workflow {workflow!r} is not registered.")
        text = codec.encode(given)
        spawn = Spawn(
            run_id=child,
            parent_id=self.run_id,
            root_id=claim.root_id,
            depth=claim.depth + 1,
            pos=pos,
            name=name,
            workflow=workflow,
            input=codec.decode(text),
            data=data,
            tenant=claim.tenant,
            actor_id=claim.actor_id,
        )

        def entry(value: dict[str, Any], token: str) -> list[store.Entry]:
            return [store.Entry(pos, name, "child", codec.encode(value), "code" not in value, token)]

        def refused(code: str, detail: str) -> dict[str, Any]:
            value = {"run_id": str(child), "code": code, "detail": detail}
            [written] = self._write([pos], lambda token: entry(value, token), autocommit=True)
            return dict(written)

        if spawn.depth > MAX_DEPTH:
            return refused("depth_limit", f"runs may not be nested more than {MAX_DEPTH} deep")

        def work(token: str) -> list[store.Entry]:
            if engine.on_spawn is not None:
                engine.on_spawn(spawn)
            store.insert_run(
                child,
                workflow,
                version,
                text,
                queue=claim.queue,
                tenant=claim.tenant,
                actor_id=claim.actor_id,
                parent=claim,
                parent_pos=pos,
            )
            engine.hint_run(child)
            return entry({"run_id": str(child)}, token)

        try:
            [written] = self._write([pos], work, uncancelled=True)
        except SpawnRefused as error:
            return refused(error.code, error.message)
        faults.hit("after_spawn")
        return dict(written)

    def _park(self, kind: str, key: str, pos: str) -> ControlFlow:
        """Try to park; how this replay ends."""
        faults.hit("before_park")
        claim = self._claim

        def gone() -> bool | None:
            return store.read_claim(self.run_id, claim.owner) is None or None

        if transactions.statement(
            lambda: store.park(claim, kind, key, pos), using=store.alias(), recognise=gone
        ):
            return WorkflowSuspended(key)
        now = store.read_claim(self.run_id, claim.owner)
        if now is None:
            return Fenced("the claim is lost")
        return RunCancelled("the run was cancelled") if now.cancelled else Again()
