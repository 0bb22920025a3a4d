"""The writes of one drive: each proves, in its own transaction, that the claim still holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django.db import IntegrityError

from agora_agent import codec
from agora_agent.durable import endings, faults, lookups, store, taskstore, transactions
from agora_agent.durable.models import MAX_DEPTH
from agora_agent.durable.values import LocalStep, SignalInfo, Spawn, SpawnRefused, TaskSpec
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

T = TypeVar("T")


class Again(ControlFlow):
    """Something happened since the journal was read: replay instead of parking."""


class Ended(ControlFlow):
    """The run has been ended by ``finish`` or ``fail``."""


class Recorder:
    """What a context writes under one claim."""

    def __init__(self, engine: Engine, claim: store.Claim) -> None:
        self._engine, self._claim = engine, claim
        self._run_id = claim.run_id
        self._pending = claim.pending_tasks

    def write(
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
            rows = [store.entry_at(self._run_id, pos) for pos in positions]
            return [row.payload for row in rows if row and row.token == token] or None

        try:
            if autocommit:
                payloads = transactions.statement(attempt, using=store.alias(), recognise=own)
            else:
                payloads = self._transact(attempt, own)
        except IntegrityError:
            mine = own()
            if mine is None:
                if any(store.entry_at(self._run_id, pos) for pos in positions):
                    raise Fenced("another driver has recorded this position") from None
                raise
            payloads = mine
        except Fenced:
            if uncancelled:
                self._unwind()
            raise
        faults.hit("after_checkpoint")
        return [codec.decode(text) for text in payloads]

    def end(self, step: LocalStep, status: str, output: Any, code: str, detail: str, pos: str | None) -> None:
        """A step's effects, the run's end, the parent's notice and the journal row, in one transaction."""
        text = codec.encode(output)
        prepared = step.prepare() if step.prepare else None
        claim = self._claim

        def work() -> bool:
            value = step.commit(prepared) if step.commit else prepared
            endings.write(
                self._engine,
                self._run_id,
                claim.parent_id,
                status,
                endings.held_by(claim, uncancelled=True),
                output=text,
                code=code,
                detail=detail,
            )
            if pos is not None:
                entry = store.Entry(pos, step.name, "step", codec.encode(value), token=store.new_token())
                store.insert_entry(self._run_id, entry)
            faults.hit("before_end")
            return True

        try:
            self._transact(work, lambda: lookups.ended_by(claim) or None)
        except endings.Refused:
            if not lookups.ended_by(claim):
                self._unwind()
        faults.hit("after_end")

    def dispatched(self, missing: list[tuple[str, TaskSpec]]) -> bool:
        """True if these tasks were dispatched by an earlier drive. Asks only if there were open ones at all."""
        if not self._pending:
            return False
        names = taskstore.names_at(self._run_id, [pos for pos, _ in missing])
        for pos, spec in missing:
            if names and names.get(pos) != spec.name:
                raise NonDeterminismError(pos, names.get(pos, "nothing"), spec.name)
        return bool(names)

    def dispatch(self, places: list[tuple[str, TaskSpec]]) -> None:
        """Insert task rows and count them."""
        rows = [(pos, spec, codec.encode(spec.request)) for pos, spec in places]

        def work() -> bool:
            if not taskstore.reserve(self._claim, len(rows)):
                raise endings.Refused
            taskstore.insert_tasks(self._run_id, rows)
            return True

        def own() -> bool | None:
            return bool(taskstore.names_at(self._run_id, [places[0][0]])) or None

        try:
            self._transact(work, own)
        except endings.Refused:
            self._unwind()
        faults.hit("after_dispatch")

    def consume(
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
            row = store.entry_at(self._run_id, pos)
            return [row.payload] if row and row.token == token else None

        payloads = self._transact(work, own)
        faults.hit("after_consume")
        return [codec.decode(text) for text in payloads]

    def spawn(self, pos: str, name: str, workflow: str, given: Any, data: Any) -> dict[str, Any]:
        """Insert a child, the host first; what the journal keeps of it."""
        engine, claim = self._engine, self._claim
        child = child_id(self._run_id, pos)
        version = engine.newest_version(workflow)
        if version is None:
            raise ConfigurationError(f"The workflow {workflow!r} is not registered.")
        text = codec.encode(given)
        spawn = Spawn(
            run_id=child,
            parent_id=self._run_id,
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
            [written] = self.write([pos], lambda token: entry(value, token), autocommit=True)
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
            [written] = self.write([pos], work, uncancelled=True)
        except SpawnRefused as error:
            return refused(error.code, error.message)
        faults.hit("after_spawn")
        return dict(written)

    def park(self, kind: str, key: str, pos: str) -> ControlFlow:
        """Try to park; how this replay ends."""
        faults.hit("before_park")
        claim = self._claim

        def gone() -> bool | None:
            return store.read_claim(self._run_id, claim.owner) is None or None

        if transactions.statement(
            lambda: store.park(claim, kind, key, pos), using=store.alias(), recognise=gone
        ):
            return WorkflowSuspended(key)
        now = store.read_claim(self._run_id, claim.owner)
        if now is None:
            return Fenced("the claim is lost")
        return RunCancelled("the run was cancelled") if now.cancelled else Again()

    def _unwind(self) -> NoReturn:
        """A conditional statement matched no row: cancelled, or not ours any more?"""
        now = store.read_claim(self._run_id, self._claim.owner)
        if now is not None and now.cancelled:
            raise RunCancelled("the run was cancelled")
        raise Fenced("the claim is lost")

    def _transact(self, work: Callable[[], T], recognise: Callable[[], T | None]) -> T:
        return transactions.transact(
            work, using=store.alias(), durable=self._engine.durable, recognise=recognise
        )
