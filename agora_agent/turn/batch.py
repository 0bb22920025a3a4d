"""The tool calls of one step: decided, executed and recorded, each to its own outcome."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from agora_agent.db import DbNow
from agora_agent.exceptions import RunCancelled
from agora_agent.models import AgentRun, Message, ToolCall
from agora_agent.turn import history
from agora_agent.turn.claim import ask_again_step
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

_OPEN = (
    ToolCall.Status.AUTO_EXECUTED,
    ToolCall.Status.APPROVED,
    ToolCall.Status.EXECUTING,
    ToolCall.Status.INTERRUPTED,
)


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
        if len(claimed) > 1 and all(call["kind"] == ToolCall.Kind.READ for call in claimed):
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
        for round_number in range(1, MAX_ROUNDS + 1):
            if call["verdict"] == "ask":
                waiting = WaitingCall(call["pk"], call["id"], call["signalKey"], round_number)
                decision = self.hooks.await_approval(waiting)
                if decision["status"] != "approved":
                    return self._rejected(call)
            suffix = "" if round_number == 1 else f":{round_number}"
            outcome = self._executed(call, suffix)
            if not self._is_changed(outcome):
                return self._recorded(call, outcome)
            again = ask_again_step(self.deps, self.turn, self.sink, call, round_number + 1)
            [call] = self.hooks.group([again])
            if call["verdict"] == "refuse":
                return self._failed(call, call["error"])
        return self._failed(call, "The tool kept changing while the call waited; nothing was executed.")

    def _executed(self, call: dict[str, Any], suffix: str) -> StepOutcome:
        """Execute; while the outcome is unknown, wait for a person to settle it."""
        outcome = self.hooks.tool_step(self._spec(call, suffix))
        attempt = 1
        while self._is_unknown(call, outcome):
            self.hooks.group([self._interrupted(call, f"{suffix}:x{attempt}" if attempt > 1 else suffix)])
            key = f"{call['signalKey']}:settle" + (f":{attempt}" if attempt > 1 else "")
            settlement = self.hooks.await_settlement(WaitingCall(call["pk"], call["id"], key, attempt))
            match settlement["outcome"]:
                case "done":
                    return StepOutcome(True, {"status": "executed", "output": settlement.get("output")})
                case "failed":
                    reason = settlement.get("reason") or "A person recorded this call as failed."
                    return StepOutcome(True, {"status": "failed", "error": reason})
            attempt += 1
            outcome = self.hooks.tool_step(self._spec(call, f"{suffix}:x{attempt}"))
        return outcome

    def _is_unknown(self, call: dict[str, Any], outcome: StepOutcome) -> bool:
        if outcome.ok:
            return bool(outcome.value["status"] == "interrupted")
        return bool(outcome.code == "in_doubt" or (outcome.code == "lost" and call["kind"] == "action"))

    def _is_changed(self, outcome: StepOutcome) -> bool:
        return bool(
            outcome.ok and outcome.value["status"] == "refused" and outcome.value["code"] == "changed"
        )

    def _spec(self, call: dict[str, Any], suffix: str = "") -> ToolStepSpec:
        return ToolStepSpec(f"tool:{call['id']}{suffix}", call["pk"], call["queue"], call["atMostOnce"])

    def _delegated(self, call: dict[str, Any]) -> LocalStep:
        outcome: ChildOutcome = self.hooks.run_agent(
            f"agent:{call['id']}", call["name"], call["input"]["task"], call["pk"]
        )
        if outcome.status == "completed":
            result = {"status": "executed", "output": {"text": outcome.text}}
            return self._recorded(call, StepOutcome(True, result))
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
            self._resume()
            changed = ToolCall.objects.filter(pk=call["pk"], status__in=_OPEN).update(
                status=ToolCall.Status.EXECUTED, output=output, executed_at=DbNow()
            )
            if not changed:
                self._check_told(call, ToolCall.Status.EXECUTED)
                return
            self._audit_settled(call, "executed")
            self.sink.append(self._result_frame(call, "executed", output=output))

        return LocalStep(f"persist:toolexec:{call['id']}", commit)

    def _failed(self, call: dict[str, Any], error: str) -> LocalStep:
        def commit(_: Any) -> None:
            self._resume()
            changed = ToolCall.objects.filter(pk=call["pk"], status__in=_OPEN).update(
                status=ToolCall.Status.FAILED, error=error, executed_at=DbNow()
            )
            if not changed:
                raise RunCancelled("the call was settled meanwhile")
            self._audit_settled(call, "failed")
            self.sink.append(self._result_frame(call, "failed", error=error))

        return LocalStep(f"persist:toolfail:{call['id']}", commit)

    def _refused(self, call: dict[str, Any]) -> LocalStep:
        """The claim has stored the refusal; what is left is to tell."""

        def commit(_: Any) -> None:
            error = ToolCall.objects.values_list("error", flat=True).get(pk=call["pk"])
            self.sink.append(self._result_frame(call, "failed", error=error))

        return LocalStep(f"persist:toolfail:{call['id']}", commit)

    def _rejected(self, call: dict[str, Any]) -> LocalStep:
        def commit(_: Any) -> None:
            self._resume()
            row = ToolCall.objects.get(pk=call["pk"])
            self._audit_settled(call, row.status)
            self.sink.append(self._result_frame(call, row.status, error=history.result_of(row)["error"]))

        return LocalStep(f"persist:toolreject:{call['id']}", commit)

    def _interrupted(self, call: dict[str, Any], suffix: str) -> LocalStep:
        def commit(_: Any) -> None:
            AgentRun.objects.filter(pk=self.turn.run_id).update(phase=AgentRun.Phase.WAITING)
            ToolCall.objects.filter(pk=call["pk"], status=ToolCall.Status.EXECUTING).update(
                status=ToolCall.Status.INTERRUPTED
            )
            self._audit_settled(call, "interrupted")

        return LocalStep(f"persist:toolinterrupt:{call['id']}{suffix}", commit)

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

    def _resume(self) -> None:
        waits = ToolCall.objects.filter(run_id=self.turn.run_id, status__in=ToolCall.PENDING).exists()
        alive = AgentRun.objects.filter(pk=self.turn.run_id, status=AgentRun.Status.RUNNING).update(
            phase=AgentRun.Phase.WAITING if waits else AgentRun.Phase.EXECUTING
        )
        if not alive:
            raise RunCancelled("the run was ended while a tool ran")

    def _check_told(self, call: dict[str, Any], status: str) -> None:
        """The tool's own late record may have come first, with its frame; anything else is not ours to write."""
        if not ToolCall.objects.filter(pk=call["pk"], status=status).exists():
            raise RunCancelled("the call was settled meanwhile")

    def _audit_settled(self, call: dict[str, Any], status: str) -> None:
        if call["kind"] == ToolCall.Kind.ACTION:
            self.deps.audit(self.turn.run_id, "settled", {"callId": call["id"], "status": status})

    def _result_frame(self, call: dict[str, Any], status: str, **outcome: Any) -> Frame:
        return "tool-result", {"runId": str(self.turn.run_id), "id": call["id"], "status": status, **outcome}
