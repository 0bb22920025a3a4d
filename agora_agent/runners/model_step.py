"""``agent.llm``: one model call, executed wherever its task is claimed."""

from __future__ import annotations

import logging
import re
import secrets
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from django.db import Error as DatabaseFailure
from django.utils.module_loading import import_string

from agora_agent import codec
from agora_agent.abort import AbortSignal
from agora_agent.agents.agent import Agent
from agora_agent.agents.registry import find_tool, get_agent, offered_tools
from agora_agent.agents.tool import Tool
from agora_agent.conf import agora_settings, instance
from agora_agent.exceptions import ModelFailed, RunCancelled
from agora_agent.governance.policy import permitted
from agora_agent.governance.principal import acting
from agora_agent.governance.rights import fresh_user
from agora_agent.models import AgentRun, ToolCall, Usage
from agora_agent.providers.base import ModelProvider, ModelRequest, ModelTurn, RequestedCall, ToolSpec
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData
from agora_agent.streaming.live import LiveText, rewind, step_start
from agora_agent.turn.history import load_messages
from agora_agent.turn.hooks import TurnInput
from agora_agent.turn.prompt import system_prompt

logger = logging.getLogger("agora_agent.runners")

NAME = "agent.llm"
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Task(Protocol):
    """What a step needs to know of the task that it serves."""

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""


class Control(Protocol):
    """How a step hears that it must stop, and how it proves that it may still write."""

    @property
    def abort(self) -> AbortSignal:
        """Fires when the work is to stop."""

    @property
    def guard(self) -> Callable[[], None]:
        """To be called as the last statement of an open transaction: raises Fenced if the task is another's now."""


class ModelStep:
    """Asks the provider and streams its text. The result says for each call what the offering process knew of it."""

    name = NAME

    def claim(self, task: Task, request: dict[str, Any]) -> None:
        """Open the usage row of this attempt and announce the step, in the transaction that claims the task."""
        run_id, step = uuid.UUID(request["runId"]), request["step"]
        run = AgentRun.objects.only("root_id").get(pk=run_id)
        alive = AgentRun.objects.filter(
            pk=run_id, status=AgentRun.Status.RUNNING, cancel_requested_at=None
        ).update(phase=AgentRun.Phase.EXECUTING)
        if not alive:
            raise RunCancelled("the run has ended or is being stopped")
        earlier = Usage.objects.filter(run_id=run_id, step=step, state=Usage.State.OPEN)
        repeated = bool(earlier.update(state=Usage.State.UNKNOWN)) or task.attempt > 1
        # A row that is there already means that another process has this task: its claim fails a moment later.
        row = Usage(run_id=run_id, step=step, attempt=task.attempt)
        Usage.objects.bulk_create([row], ignore_conflicts=True)
        announced = step_start(run.root_id, run_id, step) if repeated else 0
        if announced:
            rewind(run.root_id, run_id, announced)
        else:
            start = {"runId": str(run_id), "index": step, "phase": "start"}
            frames.append(run.root_id, [FrameData("step", start)])

    def run(self, task: Task, request: dict[str, Any], control: Control) -> dict[str, Any]:
        """Call the model.

        Raises:
            RunCancelled: the call was aborted.
            ModelFailed: with ``retryable``: the step is to be executed again.
        """
        run_id = uuid.UUID(request["runId"])
        run = AgentRun.objects.only("input", "actor_id").get(pk=run_id)
        turn = TurnInput.unpack(run.input)
        agent = get_agent(turn.agent)
        user = fresh_user(run.actor_id)
        if agent is None:
            return _failed("run_failed", f"no agent {turn.agent!r} in this process")
        if user is None or not user.is_active:
            return _failed("run_failed", "the actor is gone or deactivated")
        with acting():
            tools = _permitted_tools(agent, turn, user)
            model_request = ModelRequest(
                model=agent.model or agora_settings.MODEL,
                system=system_prompt(agent, turn.persona, user, turn.page_context),
                messages=_messages(turn, request["window"]),
                tools=[ToolSpec(tool.name, tool.description, tool.schema) for tool in tools],
                run_id=str(run_id),
                step=request["step"],
            )
            text = LiveText(turn.root_id, control.guard, run_id=run_id)
            try:
                answer = provider_of(agent).run_turn(model_request, text, control.abort)
            except ModelFailed as error:
                text.flush()
                if error.retryable:
                    raise
                logger.warning("model call failed", extra={"run_id": str(run_id), "code": error.code})
                return _failed(error.code, error.message)
            except DatabaseFailure:
                raise  # of the live text: the step is executed again
            except Exception as error:
                logger.exception("the provider failed", extra={"run_id": str(run_id)})
                return _failed("model_failed", type(error).__name__)
            text.flush()
        return _result(answer, agent, turn, task.attempt)


def provider_of(agent: Agent) -> ModelProvider:
    """The provider that an agent names, else the one in the settings."""
    provider = agent.provider
    if provider is None:
        found: ModelProvider = instance("MODEL_PROVIDER")
        return found
    named: ModelProvider = import_string(provider)() if isinstance(provider, str) else provider
    return named


def _messages(turn: TurnInput, window: dict[str, Any]) -> list[dict[str, Any]]:
    if "messages" in window:  # recorded before ``agent:history-select``
        return [*window["messages"], *load_messages(turn.thread_id, window["last"] + 1)]
    return load_messages(turn.thread_id, window["first"])


def _permitted_tools(agent: Agent, turn: TurnInput, user: Any) -> list[Tool]:
    offered = offered_tools(agent, turn.persona or None)
    return [tool for tool in offered if tool.kind != "ask" and permitted(tool, user, agent)]


def _failed(code: str, detail: str) -> dict[str, Any]:
    return {"failed": {"code": code, "detail": detail}}


def _result(answer: ModelTurn, agent: Agent, turn: TurnInput, attempt: int) -> dict[str, Any]:
    usage = answer.usage
    known = {} if usage is None else {"inputTokens": usage.input, "outputTokens": usage.output}
    if usage is not None and usage.cache_read is not None:
        known["cacheReadTokens"] = usage.cache_read
    if usage is not None and usage.reasoning is not None:
        known["reasoningTokens"] = usage.reasoning
    return {
        "text": codec.clean_text(answer.text),
        "calls": _offered_calls(answer.calls, agent, turn),
        "finishReason": answer.finish_reason,
        "usage": known or None,
        "model": answer.model,
        "attempt": attempt,
    }


def _offered_calls(calls: list[RequestedCall], agent: Agent, turn: TurnInput) -> list[dict[str, Any]]:
    taken = {
        call_id.casefold()
        for call_id in ToolCall.objects.filter(run_id=turn.run_id).values_list("call_id", flat=True)
    }
    stamped = []
    for place, call in enumerate(calls):
        call_id = call.id
        if not _CALL_ID.fullmatch(call_id) or call_id.casefold() in taken:
            call_id = f"call-{secrets.token_hex(8)}"
        taken.add(call_id.casefold())
        error = call.error or ""
        if place >= turn.max_tool_calls:
            error = f"A step may ask for {turn.max_tool_calls} calls: this one was not looked at."
        tool = find_tool(agent, call.name, turn.persona or None)
        arguments, unusable = _storable(call.arguments)
        stamped.append(
            {
                "id": call_id,
                "name": codec.clean_text(call.name or "")[:64],
                "input": arguments,
                "error": error or unusable,
                "kind": tool.kind if tool else "read",
                "identity": tool.identity if tool else "",
                "tier": tool.tier if tool else "",
                "approver": (tool.approver or "") if tool else "",
                "queue": tool.queue if tool else "default",
            }
        )
    return stamped


def _storable(arguments: object) -> tuple[Any, str]:
    try:
        codec.canonical(arguments)
    except codec.Unencodable as error:
        return None, f"The arguments cannot be used: {error}."
    return codec.roundtrip(arguments), ""


def record_usage(run_id: uuid.UUID, step: int, result: dict[str, Any]) -> None:
    """Close the usage row of a model step in the open transaction. What the provider did not say stays unknown."""
    usage = result.get("usage") or {}
    Usage.objects.filter(run_id=run_id, step=step, attempt=result["attempt"], state=Usage.State.OPEN).update(
        state=Usage.State.REPORTED if usage else Usage.State.UNKNOWN,
        model=result["model"][:190],
        input_tokens=usage.get("inputTokens"),
        output_tokens=usage.get("outputTokens"),
        cache_read_tokens=usage.get("cacheReadTokens"),
        reasoning_tokens=usage.get("reasoningTokens"),
    )
