"""The tool calls of one step: decided, executed and recorded, each to its own outcome."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from agora_agent.db import DbNow
from agora_agent.exceptions import RunCancelled
from agora_agent.models import AgentRun, Message, ToolCall
from agora_agent.turn import history
from agora_agent.turn.claim import claim_again_step
from agora_agent.turn.hooks import (
    AgentLoopDeps,
    AgentLoopHooks,
    ChildOutcome,
    Frame,
    LocalStep,
    RunSink,
    StepOutcome,
    ToolStepSpec,
    TurnInput,
    WaitingCall,
)

#: A call whose tool keeps changing under it is given up after so many rounds of asking.
MAX_ROUNDS = 5

_IN_HAND = (ToolCall.Status.EXECUTING, ToolCall.Status.INTERRUPTED)
_OPEN = (ToolCall.Status.AUTO_EXECUTED, ToolCall.Status.APPROVED, *_IN_HAND)
_LANDED = (ToolCall.Status.EXECUTED, ToolCall.Status.FAILED)


class StepRecord:
    """One model step and what its frames say about it."""

    def __init__(self, index: int, result: dict[str, Any]) -> None:
        self.index, self.result = index, result

    def finish_frame(self, run_id: uuid.UUID) -> Frame:
        """``step`` with phase finish. Unknown usage and cost are null, never 0."""
        return "step", {
            "runId": str(run_id),
            "index": self.index,
            "phase": "finish",
            "usage": self.result.get("usage"),
            "costUsd": None,
            "model": self.result["model"],
        }


class Batch:
    """Runs the claimed calls of one step."""

    def __init__(
        self, deps: AgentLoopDeps, turn: TurnInput, hooks: AgentLoopHooks, sink: RunSink, record: StepRecord
    ) -> None:
        self.deps, self.turn, self.hooks, self.sink, self.record = deps, turn, hooks, sink, record

    def run(self, claimed: Sequence[dict[str, Any]]) -> None:
        """Reads side by side; with anything else among them one after the other, in call order."""
        side_by_side = all(
            call["kind"] == ToolCall.Kind.READ and call["verdict"] != "ask" for call in claimed
        )
        if len(claimed) > 1 and side_by_side:
            self.hooks.check_cancelled()
            executable = [call for call in claimed if call["verdict"] == "run"]
            outcomes = self.hooks.parallel([self._spec(call) for call in executable]) if executable else []
            settled = {call["id"]: outcome for call, outcome in zip(executable, outcomes, strict=True)}
            records = [
                self._recorded(call, settled[call["id"]]) if call["id"] in settled else self._refused(call)
                for call in claimed
            ]
            self.hooks.group([*records, self._results_step()])
            return
        for call in claimed[:-1]:
            self.hooks.group([self._settled(call)])
        self.hooks.group([self._settled(claimed[-1]), self._results_step()])

    def run_one_by_one(self, claims: Sequence[LocalStep]) -> None:
        """The shape of runs from before ``agent:parallel-tools``: claim, execute, record, then the next call."""
        for claim in claims:
            [claimed] = self.hooks.group([claim])
            self.hooks.group([self._settled(claimed)])
        self.hooks.group([self._results_step()])

    def _settled(self, call: dict[str, Any]) -> LocalStep:
        """Bring one call to its outcome; the step that records it."""
        self.hooks.check_cancelled()
        if call["verdict"] == "refuse":
            return self._refused(call)
        if call["kind"] == ToolCall.Kind.AGENT:
            return self._delegated(call)
        round_number = 1
        while True:
            if call["verdict"] == "ask":
                waiting = WaitingCall(call["pk"], call["id"], call["signalKey"], round_number)
                decision = self.hooks.await_approval(waiting)
                if decision["status"] != "approved":
                    return self._rejected(call)
            suffix = "" if round_number == 1 else f":{round_number}"
            outcome = self._executed(call, suffix)
            if not self._is_changed(outcome) or round_number == MAX_ROUNDS:
                return self._recorded(call, outcome)
            round_number += 1
            [call] = self.hooks.group([claim_again_step(self.deps, self.turn, self.sink, call, round_number)])
            if call["verdict"] == "refuse":
                return self._failed(call, call["error"])

    def _executed(self, call: dict[str, Any], suffix: str) -> StepOutcome:
        """Execute; while the outcome is unknown, wait for a person to settle it."""
        outcome = self.hooks.tool_step(self._spec(call, suffix))
        launch = 1
        while self._is_unknown(call, outcome, launch):
            mark = suffix if launch == 1 else f"{suffix}:x{launch}"
            [landed] = self.hooks.group([self._interrupted(call, mark, outcome)])
            if landed is not None:
                return StepOutcome(True, landed)
            key = f"{call['signalKey']}:settle" + (f":{launch}" if launch > 1 else "")
            settlement = self.hooks.await_settlement(WaitingCall(call["pk"], call["id"], key, launch))
            match settlement["outcome"]:
                case "done":
                    return StepOutcome(True, {"status": "executed", "output": settlement.get("output")})
                case "failed":
                    reason = settlement.get("reason") or "A person recorded this call as failed."
                    return StepOutcome(True, {"status": "failed", "error": reason})
            launch += 1
            outcome = self.hooks.tool_step(self._spec(call, f"{suffix}:x{launch}"))
        return outcome

    def _is_unknown(self, call: dict[str, Any], outcome: StepOutcome, launch: int) -> bool:
        """A launch that was refused says nothing of the one before it, whose outcome stays unknown."""
        if outcome.ok:
            return outcome.value["status"] == "interrupted" or (
                launch > 1 and outcome.value["status"] == "refused"
            )
        return outcome.code == "in_doubt" or (outcome.code == "lost" and call["kind"] == "action")

    def _is_changed(self, outcome: StepOutcome) -> bool:
        return bool(
            outcome.ok and outcome.value["status"] == "refused" and outcome.value["code"] == "changed"
        )

    def _spec(self, call: dict[str, Any], suffix: str = "") -> ToolStepSpec:
        return ToolStepSpec(f"tool:{call['id']}{suffix}", call["pk"], call["queue"], call["atMostOnce"])

    def _delegated(self, call: dict[str, Any]) -> LocalStep:
        outcome: ChildOutcome = self.hooks.run_agent(
            f"agent:{call['id']}", call["name"], call["input"]["task"], call["maxSteps"], call["pk"]
        )
        if outcome.status == "completed":
            result = {"status": "executed", "output": {"text": outcome.text}}
            return self._recorded(call, StepOutcome(True, result))
        if outcome.status == "refused":
            return self._failed(call, outcome.text)
        why = "was stopped" if outcome.status == "cancelled" else f"failed ({outcome.code or 'run_failed'})"
        return self._failed(call, f"The agent {call['name']!r} {why} before it had an answer.")

    def _recorded(self, call: dict[str, Any], outcome: StepOutcome) -> LocalStep:
        if not outcome.ok:
            return self._failed(
                call, "The tool was lost with the process that ran it; nothing more is known."
            )
        value = outcome.value
        if value["status"] != "executed":
            return self._failed(call, value.get("error") or value.get("message") or "The tool failed.")
        output = value.get("output")

        def commit(_: Any) -> None:
            self._settle(call, ToolCall.Status.EXECUTED, output=output)

        return LocalStep(f"persist:toolexec:{call['id']}", commit)

    def _failed(self, call: dict[str, Any], error: str) -> LocalStep:
        def commit(_: Any) -> None:
            self._settle(call, ToolCall.Status.FAILED, error=error)

        return LocalStep(f"persist:toolfail:{call['id']}", commit)

    def _refused(self, call: dict[str, Any]) -> LocalStep:
        """The claim has stored the refusal; what is left is to tell."""

        def commit(_: Any) -> None:
            self._resume()
            self._audit_settled(call, ToolCall.Status.FAILED)
            self._tell(call)

        return LocalStep(f"persist:toolfail:{call['id']}", commit)

    def _rejected(self, call: dict[str, Any]) -> LocalStep:
        """The decision has stored the outcome; what is left is to tell."""

        def commit(_: Any) -> None:
            self._resume()
            row = ToolCall.objects.get(pk=call["pk"])
            self._audit_settled(call, row.status)
            self._tell(call)

        return LocalStep(f"persist:toolreject:{call['id']}", commit)

    def _interrupted(self, call: dict[str, Any], mark: str, outcome: StepOutcome) -> LocalStep:
        """Nobody knows whether the call had its effect; unless it landed just before its process died."""

        def commit(_: Any) -> dict[str, Any] | None:
            self._resume(AgentRun.Phase.WAITING)
            unknown = ToolCall.objects.filter(pk=call["pk"], status__in=_IN_HAND)
            found: dict[str, Any] = {"error": ""}
            if outcome.ok and outcome.value["status"] == "refused":
                # The settlement that asked for this launch is used up: the next one counts from here.
                found = {"error": outcome.value["error"], "launched_at": DbNow()}
            if unknown.update(status=ToolCall.Status.INTERRUPTED, **found):
                self._audit_settled(call, ToolCall.Status.INTERRUPTED)
                return None
            row = ToolCall.objects.get(pk=call["pk"])
            if row.status not in _LANDED:
                raise RunCancelled("the call was settled meanwhile")
            return {"status": row.status, "output": row.output, "error": row.error}

        return LocalStep(f"persist:toolinterrupt:{call['id']}{mark}", commit)

    def _results_step(self) -> LocalStep:
        """``persist:toolresults:i``: every call of the step gets its result onto the message that made it."""

        def commit(_: Any) -> None:
            rows = ToolCall.objects.filter(run_id=self.turn.run_id, step=self.record.index).order_by("index")
            results = [history.result_of(row) for row in rows]
            message = (
                Message.objects.filter(run_id=self.turn.run_id, role=Message.Role.ASSISTANT)
                .order_by("-seq")
                .values_list("pk", flat=True)[0]
            )
            Message.objects.filter(pk=message).update(tool_results=results)
            self.sink.append(self.record.finish_frame(self.turn.run_id))

        return LocalStep(f"persist:toolresults:{self.record.index}", commit)

    def _settle(self, call: dict[str, Any], status: str, **outcome: Any) -> None:
        """Bring the row to its outcome, unless the process that executed it has done so already, and tell."""
        self._resume()
        changed = ToolCall.objects.filter(pk=call["pk"], status__in=_OPEN).update(
            status=status, executed_at=DbNow(), **{"error": "", **outcome}
        )
        if changed:
            self._audit_settled(call, status)
        elif not ToolCall.objects.filter(pk=call["pk"], status=status).exists():
            raise RunCancelled("the call was settled meanwhile")
        self._tell(call)

    def _tell(self, call: dict[str, Any]) -> None:
        """The one result frame of a call, from its row."""
        if ToolCall.objects.filter(pk=call["pk"], told=False).update(told=True):
            self.sink.append(history.result_frame(ToolCall.objects.get(pk=call["pk"])))

    def _resume(self, phase: str = "") -> None:
        waits = ToolCall.objects.filter(run_id=self.turn.run_id, status__in=ToolCall.PENDING).exists()
        phase = phase or (AgentRun.Phase.WAITING if waits else AgentRun.Phase.EXECUTING)
        alive = AgentRun.objects.filter(pk=self.turn.run_id, status=AgentRun.Status.RUNNING).update(
            phase=phase
        )
        if not alive:
            raise RunCancelled("the run was ended while a tool ran")

    def _audit_settled(self, call: dict[str, Any], status: str) -> None:
        if call["kind"] == ToolCall.Kind.ACTION:
            self.deps.audit(self.turn.run_id, "settled", {"callId": call["id"], "status": status})
