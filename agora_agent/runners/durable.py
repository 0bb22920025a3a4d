"""The durable runner: the only place where a turn and the engine meet. Every hook is one engine call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction

from agora_agent.conf import agora_settings
from agora_agent.durable.context import Context
from agora_agent.durable.dispatchers import resolve_dispatcher
from agora_agent.durable.values import LocalStep as EngineStep
from agora_agent.durable.values import (
    Mode,
    SignalInfo,
    Spawn,
    SpawnRefused,
    StepRefused,
    TaskOutcome,
    TaskSpec,
)
from agora_agent.durable.workflow import Engine
from agora_agent.governance.locking import retrying
from agora_agent.governance.principal import Principal
from agora_agent.ids import new_id
from agora_agent.models import AgentRun, ToolCall, write_alias
from agora_agent.runners import model_step, tool_step
from agora_agent.runners.cancel import request_cancel
from agora_agent.runners.deps import loop_deps
from agora_agent.runners.replies import read_decision, read_settlement
from agora_agent.runners.settle import settle
from agora_agent.runners.sinks import StreamSink
from agora_agent.runners.start import DelegationRefused, create_child, create_run
from agora_agent.turn.hooks import (
    AgentLoopDeps,
    ChildOutcome,
    Ending,
    LocalStep,
    RunSink,
    StepOutcome,
    ToolStepSpec,
    TurnInput,
    WaitingCall,
)
from agora_agent.turn.loop import PATCHES, run_agent_loop
from agora_agent.turn.runner import AgentRunInput, Decision, ElicitationReply

__all__ = [
    "AgentRunWorkflow",
    "DurableAgentRunner",
    "build_engine",
    "register_agent_workflow",
    "set_durable_agent_context",
]

WORKFLOW = "agent.run"

_deps: Callable[[], AgentLoopDeps] = loop_deps


def set_durable_agent_context(*, deps: Callable[[], AgentLoopDeps] = loop_deps) -> None:
    """For a host that wires the engine itself: what the workflow gives the loop. Without it, the app's own."""
    global _deps
    _deps = deps


class DurableAgentRunner:
    """Runs turns as workflows of an engine."""

    durable = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def start(self, run_input: AgentRunInput, *, run_id: uuid.UUID | None = None) -> uuid.UUID:
        """See :class:`agora_agent.turn.runner.AgentRunner`."""
        with transaction.atomic(using=write_alias()):
            turn = create_run(run_input, run_id, durable=True)
            self.engine.start(
                WORKFLOW, turn.pack(), run_id=turn.run_id, tenant=turn.tenant, actor_id=turn.user_id
            )
        return turn.run_id

    def is_run_active(self, run_id: uuid.UUID) -> bool:
        """True while the run has not ended."""
        return AgentRun.objects.filter(pk=run_id).live().exists()

    def signal(self, run_id: uuid.UUID, tool_call_id: str, reply: Decision | ElicitationReply) -> None:
        """Wake the run. It looks for a decision row, and without one it waits on."""
        call = ToolCall.objects.filter(run_id=run_id, call_id=tool_call_id).first()
        if call is not None:
            self.wake(run_id, call.signal_key, str(new_id()))

    def wake(self, run_id: uuid.UUID, key: str, dedupe: str) -> None:
        """Signal the run inside the open transaction, which holds the decision."""
        self.engine.signal(run_id, key, dedupe=dedupe)

    def oldest_ready_seconds(self) -> float | None:
        """The age of the engine's oldest due run."""
        return self.engine.health()["oldest_ready_seconds"] or None

    def cancel(
        self, run_id: uuid.UUID, *, by: str = "", reason: str = "", principal: Principal | None = None
    ) -> bool:
        """Stop the run and its children: at once where nothing executes, else at the next boundary."""
        using = write_alias()

        def stop() -> bool:
            with transaction.atomic(using=using):
                asked_by = request_cancel(run_id, by, principal)
                if asked_by is None:
                    return False
                self.engine.cancel(run_id, by=asked_by, reason=reason)
            return True

        return retrying(stop, using)


class AgentRunWorkflow:
    """The loop as a workflow."""

    name = WORKFLOW
    version = 1

    def run(self, ctx: Context, packed: dict[str, Any]) -> dict[str, Any]:
        """Answer one message."""
        turn = _child_turn(ctx.run_id, packed) if "parent" in packed else TurnInput.unpack(packed)
        ending = run_agent_loop(_deps(), turn, DurableHooks(ctx, turn))
        return {"answer": ending.answer}


class DurableHooks:
    """The loop's hooks on database checkpoints."""

    def __init__(self, ctx: Context, turn: TurnInput) -> None:
        self.ctx, self.turn = ctx, turn

    def group(self, steps: Sequence[LocalStep]) -> list[Any]:
        """One commit, a position for each step."""
        return self.ctx.group([EngineStep(step.name, step.commit, step.prepare) for step in steps])

    def finish(self, step: LocalStep, ending: Ending) -> None:
        """The run's end: effects, journal row and terminal status in one commit."""
        last = EngineStep(step.name, step.commit, step.prepare)
        if ending.status == "completed":
            self.ctx.finish(last, {"answer": ending.answer})
        else:
            self.ctx.fail(last, ending.code, ending.detail)

    def model_step(self, name: str, request: dict[str, Any]) -> StepOutcome:
        """A dispatched step, routed by its name to the model queue."""
        spec = TaskSpec(name, model_step.NAME, request, deadline_seconds=agora_settings.STEP_DEADLINE_SECONDS)
        return _outcome(self.ctx.task(spec))

    def tool_step(self, spec: ToolStepSpec) -> StepOutcome:
        """A dispatched step, routed to the tool's queue."""
        return _outcome(self.ctx.task(_task(spec)))

    def parallel(self, specs: Sequence[ToolStepSpec]) -> list[StepOutcome]:
        """All dispatched in one commit, one suspend, all settled."""
        return [_outcome(outcome) for outcome in self.ctx.parallel([_task(spec) for spec in specs])]

    def await_approval(self, call: WaitingCall) -> dict[str, Any]:
        """Park on the call's signal until its decision row is there."""
        return self._wait(call, lambda: read_decision(call.pk, call.round))

    def await_answers(self, call: WaitingCall) -> dict[str, Any]:
        """The same signal, under the question set's own id."""
        return self.await_approval(call)

    def await_settlement(self, call: WaitingCall) -> dict[str, Any]:
        """Park until a person says what became of the call."""
        return self._wait(call, lambda: read_settlement(call.pk, call.round))

    def run_agent(self, name: str, agent: str, task: str, max_steps: int, call_pk: uuid.UUID) -> ChildOutcome:
        """A tracked child run."""
        packed = {"parent": self.turn.pack(), "agent": agent, "task": task, "maxSteps": max_steps}
        outcome = self.ctx.child(name, WORKFLOW, packed, {"call": call_pk})
        text = outcome.output["answer"] if outcome.ok else outcome.detail
        status = "failed" if outcome.status == "dead" else outcome.status
        return ChildOutcome(status, text, outcome.code)

    def open_sink(self) -> RunSink:
        """The top-level run's stream."""
        return StreamSink(self.turn.root_id)

    def patched(self, patch_id: str) -> bool:
        """Whether the run was first driven by code that had this change of shape."""
        return self.ctx.patched(patch_id)

    def check_cancelled(self) -> None:
        """Raise RunCancelled once the run was asked to stop."""
        self.ctx.check_cancelled()

    def _wait(self, call: WaitingCall, look: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        def read(signal: SignalInfo) -> dict[str, Any] | None:
            return look()

        reply: dict[str, Any] = self.ctx.wait_signal(call.key, read)
        return reply


def _task(spec: ToolStepSpec) -> TaskSpec:
    mode: Mode = "at_most_once" if spec.at_most_once else "at_least_once"
    return TaskSpec(
        spec.name,
        tool_step.NAME,
        {"call": str(spec.call_pk)},
        queue=spec.queue,
        mode=mode,
        deadline_seconds=agora_settings.STEP_DEADLINE_SECONDS,
    )


def _outcome(outcome: TaskOutcome) -> StepOutcome:
    return StepOutcome(outcome.ok, outcome.value, outcome.code, outcome.message)


def register_agent_workflow(engine: Engine) -> None:
    """Teach an engine the agent's workflow, its two dispatched steps and the loop's patches."""
    workflow = AgentRunWorkflow()
    engine.register_workflow(workflow.name, workflow.run, version=workflow.version)
    engine.register_step(model_step.ModelStep())
    engine.register_step(tool_step.ToolStep(StepRefused))
    for patch in PATCHES:
        engine.register_patch(patch)


def _child_turn(run_id: uuid.UUID, packed: dict[str, Any]) -> TurnInput:
    parent = TurnInput.unpack(packed["parent"])
    return parent.delegated(run_id, packed["agent"], packed["task"], packed["maxSteps"])


def on_spawn(spawn: Spawn) -> None:
    """The application's rows of a child, first in the transaction that spawns it."""
    packed = spawn.input
    try:
        create_child(_child_turn(spawn.run_id, packed), spawn.parent_id, spawn.data["call"], durable=True)
    except DelegationRefused as refusal:
        raise SpawnRefused(refusal.message, code=refusal.code) from refusal


def on_terminal(run_id: uuid.UUID, status: str, code: str, detail: str) -> None:
    """The application's rows of a run that no body ended, first in its terminal transaction."""
    if status == "cancelled":
        run = AgentRun.objects.only("cancelled_by").get(pk=run_id)
        settle(run_id, Ending("cancelled", by=run.cancelled_by))
    else:
        settle(run_id, Ending("failed", code=code or "run_failed", detail=detail))


def build_engine() -> Engine:
    """The engine as the settings describe it, with the agent's workflow registered."""
    engine = Engine(
        resolve_dispatcher(agora_settings.DISPATCHER),
        lease_seconds=agora_settings.LEASE_SECONDS,
        sweep_seconds=agora_settings.SWEEP_SECONDS,
        step_deadline_seconds=agora_settings.STEP_DEADLINE_SECONDS,
        threads=agora_settings.WORKER_THREADS,
        on_spawn=on_spawn,
        on_terminal=on_terminal,
    )
    register_agent_workflow(engine)
    return engine
