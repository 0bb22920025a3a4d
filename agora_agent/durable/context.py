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
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from agora_agent import codec
from agora_agent.durable import lookups, store, taskstore
from agora_agent.durable.execution import run_on_the_spot
from agora_agent.durable.leases import Held
from agora_agent.durable.models import Run
from agora_agent.durable.recorder import Ended, Recorder
from agora_agent.durable.values import ChildOutcome, LocalStep, SignalInfo, TaskOutcome, TaskSpec
from agora_agent.exceptions import ControlFlow, Fenced, NonDeterminismError, RunCancelled

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

P = ParamSpec("P")
T = TypeVar("T")


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
        self._index = 0
        self._recorder = Recorder(engine, claim)
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
        if entry is not None:
            spawned = codec.decode(entry.payload)
        else:
            self.check_cancelled()
            spawned = self._recorder.spawn(pos, name, workflow, input, spawn_data)
        child = uuid.UUID(spawned["run_id"])
        if "code" in spawned:
            return ChildOutcome(child, "refused", None, spawned["code"], spawned["detail"])
        ended = self._wait(self._take(), f"child:{child}", lambda _: lookups.child_end(child))
        return ChildOutcome(child, **ended)

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
        self._recorder.end(LocalStep(""), Run.Status.COMPLETED, output, "", "", None)

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
        self._check_open(pos, name)
        return None

    def _check_open(self, pos: str, name: str) -> None:
        """A position that is not recorded must be the next one, or the one that the run was parked on."""
        block, waiting = "." in pos, self._claim.wait_pos
        other_name = waiting == pos and self._claim.wait_name != name
        if other_name or (waiting[:6] == pos[:6] and ("." in waiting) != block):
            raise NonDeterminismError(pos, self._claim.wait_name, name)
        for other in sorted(self._unused):
            if other[:6] == pos[:6] and ("." in other) != block:
                raise NonDeterminismError(pos, self._journal[other].name, name)
            if other[:6] > pos[:6]:
                recorded = f"nothing here, then {self._journal[other].name} at {other}"
                raise NonDeterminismError(pos, recorded, name)

    def _check_leftover(self, asked: str) -> None:
        if self._unused:
            pos = min(self._unused)
            raise NonDeterminismError(pos, self._journal[pos].name, asked)

    def _alive(self) -> None:
        self._held.allow(self._engine.step_deadline_seconds)
        if self._held.lost:
            raise Fenced("the claim is lost")

    # Writing

    def _local(self, steps: list[LocalStep]) -> list[Any]:
        places = [(self._take(), step) for step in steps]
        found = [self._recorded(pos, step.name, "step") for pos, step in places]
        if all(found):
            return [codec.decode(entry.payload) for entry in found if entry]
        if any(found):
            pos, step = places[found.index(None)]
            raise NonDeterminismError(pos, "the end of a group", step.name)
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
        return self._recorder.write([pos for pos, _ in places], work, autocommit=alone)

    def _end(self, step: LocalStep, status: str, output: Any, code: str, detail: str) -> Any:
        pos = self._take()
        self._recorded(pos, step.name, "step")
        self._check_leftover(step.name)
        self._alive()
        self._recorder.end(step, status, output, code, detail, pos)
        self.closed = Ended()
        return codec.roundtrip(output)

    def _join(self, pairs: list[tuple[str, TaskSpec]], *, alone: bool) -> list[TaskOutcome]:
        found = [self._recorded(pos, spec.name, "task") for pos, spec in pairs]
        missing = [(pos, spec) for (pos, spec), entry in zip(pairs, found, strict=True) if entry is None]
        if not missing:
            return [TaskOutcome(**codec.decode(entry.payload)) for entry in found if entry]
        self.check_cancelled()
        fresh = not self._recorder.dispatched(missing) and len(missing) == len(pairs)
        if fresh:
            self._recorder.dispatch(missing)
        [first_pos, first] = missing[0]
        task_ids = [taskstore.task_id(self.run_id, pos) for pos, _ in missing]
        if alone and self._engine.executes(first):
            outcome = run_on_the_spot(self._engine, task_ids[0], self._claim, self._held)
            if outcome is not None:
                return [outcome]
        elif fresh:
            for task, (_, spec) in zip(task_ids, missing, strict=True):
                self._engine.hint_task(task, spec.queue)
        raise self._recorder.park("tasks", first.name, first_pos)

    def _wait(self, pos: str, key: str, read: Callable[[SignalInfo], Any]) -> Any:
        name = f"signal:{key}"
        entry = self._recorded(pos, name, "signal")
        if entry is not None:
            return codec.decode(entry.payload)
        self.check_cancelled()
        for signal in store.unread(self.run_id, key):
            found = self._recorder.consume(signal, pos, name, read)
            if found:
                return found[0]
        raise self._recorder.park("signal", key, pos)
