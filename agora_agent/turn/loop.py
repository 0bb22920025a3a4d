"""The loop body: the only place where model, tools and people meet. Plain code behind hooks.

It steers by what its hooks return, and they return what the journal holds: no registry, no settings, no clock, no
policy is read here. Checkpoint names are the contract of the journal (see ``docs/engine.md``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.db import InterfaceError, OperationalError

from agora_agent.codec import clean_text
from agora_agent.db import DbNow
from agora_agent.exceptions import RunCancelled, is_control_flow
from agora_agent.models import AgentRun, Message
from agora_agent.turn import history
from agora_agent.turn.batch import Batch, StepRecord
from agora_agent.turn.claim import claim_step
from agora_agent.turn.hooks import (
    AgentLoopDeps,
    AgentLoopHooks,
    Ending,
    LocalStep,
    RunSink,
    StepOutcome,
    TurnInput,
)

logger = logging.getLogger("agora_agent.turn")

PARALLEL_TOOLS = "agent:parallel-tools"
HISTORY_SELECT = "agent:history-select"
#: Changes of the loop's shape. A run that was recorded before one keeps its old shape to its end.
PATCHES = (PARALLEL_TOOLS, HISTORY_SELECT)


class TurnFailed(Exception):
    """The turn cannot go on; ``code`` is what readers get, ``detail`` is for operators."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def run_agent_loop(deps: AgentLoopDeps, turn: TurnInput, hooks: AgentLoopHooks) -> Ending:
    """Answer one message.

    Args:
        deps: gates, settlement, audit and usage.
        turn: what the run was started with.
        hooks: the runner.

    Returns:
        How the run ended. A suspend, a cancel or a replay refusal leaves by its exception, untouched: no
        checkpoint is written for it and the stream stays open.
    """
    try:
        ending = _answer(deps, turn, hooks)
    except TurnFailed as failure:
        ending = Ending("failed", code=failure.code, detail=failure.detail)
    except (InterfaceError, OperationalError):
        raise  # the database is away: the run is recovered, not failed
    except Exception as error:
        if is_control_flow(error):
            raise
        logger.exception("turn failed", extra={"run_id": str(turn.run_id)})
        ending = Ending("failed", code="run_failed", detail=f"{type(error).__name__}: {error}"[:2000])
    name = "persist:run:end" if ending.status == "completed" else "persist:run:fail"
    hooks.finish(LocalStep(name, lambda _: _settle(deps, turn, ending)), ending)
    return ending


def _settle(deps: AgentLoopDeps, turn: TurnInput, ending: Ending) -> None:
    if not deps.settle(turn.run_id, ending):
        raise RunCancelled("the run was ended before its last checkpoint")


def _answer(deps: AgentLoopDeps, turn: TurnInput, hooks: AgentLoopHooks) -> Ending:
    sink = hooks.open_sink()
    window = _begin(turn, hooks)
    text = ""
    for index in range(turn.max_steps):
        hooks.check_cancelled()
        request = {"runId": str(turn.run_id), "step": index, "window": window}
        result = _model_result(hooks.model_step(f"llm:{index}", request))
        text = result["text"] or text
        calls: list[dict[str, Any]] = result["calls"]
        record = StepRecord(index, result)
        if not calls:
            hooks.group(_record_answer(deps, turn, sink, record))
            return Ending("completed", finish_reason=result["finishReason"], answer=text)
        bookkeeping = _record_answer(deps, turn, sink, record)
        claims = [claim_step(deps, turn, sink, index, place, call) for place, call in enumerate(calls)]
        batch = Batch(deps, turn, hooks, sink, record)
        if len(calls) == 1 or hooks.patched(PARALLEL_TOOLS):
            claimed = hooks.group([*bookkeeping, *claims])[len(bookkeeping) :]
            batch.run(claimed)
        else:
            hooks.group(bookkeeping)
            batch.run_one_by_one(claims)
    return Ending("completed", finish_reason="max_steps", answer=text)


def _begin(turn: TurnInput, hooks: AgentLoopHooks) -> dict[str, Any]:
    select = hooks.patched(HISTORY_SELECT)

    def begin(_: Any) -> None:
        history.lock_thread(turn.thread_id)
        begun = AgentRun.objects.filter(pk=turn.run_id, status=AgentRun.Status.RUNNING).update(
            phase=AgentRun.Phase.EXECUTING, started_at=DbNow()
        )
        if not begun:
            raise RunCancelled("the run was ended before it began")

    def store_user(_: Any) -> int:
        seq = history.next_seq(turn.thread_id)
        Message.objects.create(
            thread_id=turn.thread_id,
            run_id=turn.run_id,
            seq=seq,
            role=Message.Role.USER,
            content=clean_text(turn.message),
        )
        return seq

    def load(_: Any) -> dict[str, Any]:
        last = Message.objects.values_list("seq", flat=True).get(run_id=turn.run_id, role=Message.Role.USER)
        first = history.window_start(turn.thread_id, last, turn.history_messages)
        history.heal(turn.thread_id, first, last)
        bounds = {"first": first, "last": last}
        return bounds if select else {**bounds, "messages": history.load_messages(turn.thread_id, first)}

    steps = [
        LocalStep("persist:run:start", begin),
        LocalStep("persist:user", store_user),
        LocalStep("load:thread" if select else "history:window", load),
    ]
    window: dict[str, Any] = hooks.group(steps)[-1]
    return window


def _model_result(outcome: StepOutcome) -> dict[str, Any]:
    if not outcome.ok:
        raise TurnFailed("model_failed", outcome.message or outcome.code)
    result: dict[str, Any] = outcome.value
    if failed := result.get("failed"):
        raise TurnFailed(failed["code"], failed["detail"])
    return result


def _record_answer(
    deps: AgentLoopDeps, turn: TurnInput, sink: RunSink, record: StepRecord
) -> Sequence[LocalStep]:
    index, result = record.index, record.result

    def store_assistant(_: Any) -> None:
        if result["text"] or result["calls"]:
            Message.objects.create(
                thread_id=turn.thread_id,
                run_id=turn.run_id,
                seq=history.next_seq(turn.thread_id),
                role=Message.Role.ASSISTANT,
                content=clean_text(result["text"]),
                tool_calls=[
                    {"id": call["id"], "name": call["name"], "input": call["input"] or {}}
                    for call in result["calls"]
                ],
                model=result["model"][:190],
            )
        if not result["calls"]:
            sink.append(record.finish_frame(turn.run_id))

    def store_usage(_: Any) -> None:
        # Thread, run, usage: the order in which whatever ends the run takes them too.
        history.lock_thread(turn.thread_id)
        alive = AgentRun.objects.filter(pk=turn.run_id, status=AgentRun.Status.RUNNING).update(
            steps=index + 1, model=result["model"][:190]
        )
        if not alive:
            raise RunCancelled("the run was ended during a model call")
        deps.record_usage(turn.run_id, index, result)

    return [
        LocalStep(f"persist:usage:{index}", store_usage),
        LocalStep(f"persist:assistant:{index}", store_assistant),
    ]
