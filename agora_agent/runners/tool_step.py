"""``agent.tool``: one tool call, launched through the gate and executed wherever its task is claimed."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from django.db import transaction

from agora_agent import codec
from agora_agent.agents.registry import find_tool, get_agent
from agora_agent.agents.tool import InvalidToolInput, Tool, ToolContext
from agora_agent.db import DbNow
from agora_agent.exceptions import RunCancelled, ToolError
from agora_agent.governance import audit
from agora_agent.governance.launch import LaunchRefused, gate, precheck
from agora_agent.governance.locking import lock_call, retrying
from agora_agent.governance.principal import acting
from agora_agent.governance.rights import fresh_user
from agora_agent.models import AgentRun, ToolCall, write_alias
from agora_agent.runners.model_step import Control, Task
from agora_agent.runners.sinks import component_emitter
from agora_agent.turn.hooks import TurnInput

logger = logging.getLogger("agora_agent.runners")

NAME = "agent.tool"
TIMEOUT = "timeout"


class ToolStep:
    """Executes a call. The result is ``{"status": executed | failed | refused | interrupted, …}``."""

    name = NAME

    def __init__(self, refuse: Callable[[Any], BaseException]) -> None:
        """Args:
        refuse: makes the exception by which the runner's claim takes a result instead of an execution.
        """
        self._refuse = refuse

    def prepare(self, task: Task, request: dict[str, Any]) -> None:
        """The project's own policy, before the transaction that claims the task."""
        try:
            precheck(uuid.UUID(request["call"]))
        except LaunchRefused as refusal:
            raise self._refused(refusal) from refusal

    def claim(self, task: Task, request: dict[str, Any]) -> None:
        """The launch gate, in the transaction that claims the task."""
        call = ToolCall.objects.select_related("run").get(pk=uuid.UUID(request["call"]))
        if (landed := _landed(call)) is not None:
            raise self._refuse(landed)
        tool = _tool_of(call)
        try:
            if tool is None:
                raise LaunchRefused("missing", f"The tool {call.tool_name!r} does not exist any more.")
            gate(call.pk, identity=tool.identity)
        except LaunchRefused as refusal:
            raise self._refused(refusal) from refusal
        AgentRun.objects.filter(pk=call.run_id, status=AgentRun.Status.RUNNING).update(
            phase=AgentRun.Phase.EXECUTING
        )

    def _refused(self, refusal: LaunchRefused) -> BaseException:
        return self._refuse({"status": "refused", "code": refusal.code, "error": refusal.message})

    def run(self, task: Task, request: dict[str, Any], control: Control) -> dict[str, Any]:
        """Call the handler with the stored arguments."""
        call = ToolCall.objects.select_related("run").get(pk=uuid.UUID(request["call"]))
        tool = _tool_of(call)
        if tool is None:
            return {"status": "failed", "error": f"The tool {call.tool_name!r} does not exist any more."}
        turn = TurnInput.unpack(call.run.input)
        context = ToolContext(
            user=fresh_user(call.run.actor_id),
            run_id=call.run_id,
            thread_id=turn.thread_id,
            tool_call_id=call.call_id,
            idempotency_key=f"{call.run_id}:{call.call_id}",
            abort_signal=control.abort,
            page_context=turn.page_context,
            emit_component=component_emitter(turn.root_id, control.guard),
            agent=turn.agent,
            tenant=turn.tenant,
        )
        stop_clock = _start_clock(tool, control)
        try:
            with acting():
                result = _call(tool, context, call)
        finally:
            stop_clock()
        if call.kind == ToolCall.Kind.ACTION or control.abort.aborted:
            _land(call, result)
        return result


def _tool_of(call: ToolCall) -> Tool | None:
    agent = get_agent(call.run.agent)
    return find_tool(agent, call.tool_name, call.run.persona or None) if agent else None


def _call(tool: Tool, context: ToolContext, call: ToolCall) -> dict[str, Any]:
    aborted = context.abort_signal
    try:
        output = codec.roundtrip(tool.call(context, call.input))
    except ToolError as error:
        return {"status": "failed", "error": codec.clean_text(error.message)}
    except InvalidToolInput as error:
        return {"status": "failed", "error": error.message}
    except codec.Unencodable as error:
        message = f"The tool ran, but its result cannot be stored: {error}."
        return {"status": "failed", "error": message}
    except RunCancelled:
        if aborted.reason != TIMEOUT:
            raise
        return _timed_out(tool)
    except Exception as error:
        logger.exception("tool failed", extra={"run_id": str(call.run_id), "tool": tool.name})
        if aborted.aborted and aborted.reason == TIMEOUT:
            return _timed_out(tool)
        if aborted.aborted and tool.kind == "action":
            return {"status": "interrupted"}
        return {
            "status": "failed",
            "error": f"The tool failed with an internal error ({type(error).__name__}).",
        }
    return {"status": "executed", "output": output}


def _timed_out(tool: Tool) -> dict[str, Any]:
    """An action that ran out of time may have had its effect: its outcome is unknown, not failed."""
    if tool.kind == "action":
        return {"status": "interrupted"}
    return {"status": "failed", "error": "The tool took too long and was stopped."}


def _start_clock(tool: Tool, control: Control) -> Callable[[], None]:
    if tool.timeout is None:
        return lambda: None
    timer = threading.Timer(tool.timeout.total_seconds(), lambda: control.abort.abort(TIMEOUT))
    timer.daemon = True
    timer.start()
    return timer.cancel


def _landed(call: ToolCall) -> dict[str, Any] | None:
    """The result that an earlier execution left on the row before its process died."""
    if call.status == ToolCall.Status.EXECUTED:
        return {"status": "executed", "output": call.output}
    if call.status == ToolCall.Status.FAILED and call.launched_at is not None:
        return {"status": "failed", "error": call.error}
    return None


def _land(call: ToolCall, result: dict[str, Any]) -> None:
    """Write what came of the call onto its row at once: what really happened stays visible whatever becomes of the
    run, which may have been stopped meanwhile."""
    status = result["status"]
    if status not in (ToolCall.Status.EXECUTED, ToolCall.Status.FAILED):
        return
    using = write_alias()
    in_hand = (ToolCall.Status.EXECUTING, ToolCall.Status.AUTO_EXECUTED)
    ended_first = (ToolCall.Status.INTERRUPTED, ToolCall.Status.CANCELLED)

    def write() -> None:
        with transaction.atomic(using=using):
            lock_call(call.pk, using)
            changed = ToolCall.objects.filter(
                pk=call.pk, launched_at__isnull=False, status__in=(*in_hand, *ended_first)
            ).update(
                status=status,
                output=result.get("output"),
                error=result.get("error", ""),
                executed_at=DbNow(),
            )
            if changed and call.kind == ToolCall.Kind.ACTION:
                content = {"callId": call.call_id, "status": status}
                audit.record(call.run_id, "settled", content=content)

    retrying(write, using)
