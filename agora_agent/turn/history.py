"""The part of a thread that rides in a prompt, in the providers' neutral form.

Messages are rows; a run's checkpoints hold where its window begins, never the bodies. A dead turn may have left calls
without results: they are healed here, so that the next prompt holds exactly one result for each call.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.db.models import F

from agora_agent.models import Message, Thread, ToolCall
from agora_agent.plain import to_wire

UNKNOWN = "The run ended while this call was being executed. Nobody knows whether it had its effect."
NOT_EXECUTED = "This call was not executed: the run ended first. Nothing was done."


def lock_thread(thread_id: uuid.UUID) -> None:
    """Hold the thread's row until the open transaction ends: the first lock of everything that ends or moves a run."""
    Thread.objects.filter(pk=thread_id).update(last_seq=F("last_seq"))


def next_seq(thread_id: uuid.UUID) -> int:
    """Reserve the next message number of the thread. Its row lock orders the writers."""
    Thread.objects.filter(pk=thread_id).update(last_seq=F("last_seq") + 1)
    number: int = Thread.objects.values_list("last_seq", flat=True).get(pk=thread_id)
    return number


def result_of(call: ToolCall) -> dict[str, Any]:
    """The result of a call as its row tells it."""
    result: dict[str, Any] = {"id": call.call_id, "name": call.tool_name, "status": call.status}
    match call.status:
        case ToolCall.Status.EXECUTED:
            result["output"] = call.output
        case ToolCall.Status.REJECTED:
            result["error"] = rejection_text(call.reason)
        case ToolCall.Status.EXPIRED:
            result["error"] = EXPIRED
        case ToolCall.Status.FAILED:
            result["error"] = call.error or "The tool failed."
        case ToolCall.Status.INTERRUPTED | ToolCall.Status.EXECUTING:
            result.update(status=ToolCall.Status.INTERRUPTED.value, error=UNKNOWN)
        case _:
            result.update(status=ToolCall.Status.CANCELLED.value, error=NOT_EXECUTED)
    return result


def result_frame(call: ToolCall) -> tuple[str, dict[str, Any]]:
    """The ``tool-result`` frame of a settled call, as its row tells it."""
    result = result_of(call)
    told: dict[str, Any] = {key: result[key] for key in ("output", "error") if key in result}
    return "tool-result", {"runId": str(call.run_id), "id": call.call_id, "status": result["status"], **told}


EXPIRED = "Nobody decided in time: the request expired and nothing was executed."


def rejection_text(reason: str) -> str:
    """What the model is told when a person said no."""
    why = f" Reason given: {reason}" if reason else " No reason was given."
    return f"A person declined this call.{why} Nothing was executed. Do not ask for the same call again."


def result_text(result: dict[str, Any]) -> str:
    """A result as the model reads it: never empty."""
    if "error" in result:
        return result["error"] or "The tool failed."
    output = result.get("output")
    if isinstance(output, str):
        return output or '""'
    return json.dumps(to_wire(output), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def heal(thread_id: uuid.UUID, first_seq: int, before_seq: int) -> None:
    """Give every call of earlier turns in the window that has no result the one that its row tells."""
    rows = Message.objects.filter(
        thread_id=thread_id, role=Message.Role.ASSISTANT, seq__gte=first_seq, seq__lt=before_seq
    )
    for message in rows:
        answered = {result["id"] for result in message.tool_results}
        missing = [call for call in message.tool_calls if call["id"] not in answered]
        if not missing:
            continue
        calls = {
            call.call_id: call
            for call in ToolCall.objects.filter(
                run_id=message.run_id, call_id__in=[call["id"] for call in missing]
            )
        }
        results = {result["id"]: result for result in message.tool_results}
        for asked in missing:
            call = calls.get(asked["id"])
            results[asked["id"]] = (
                result_of(call)
                if call
                else {"id": asked["id"], "name": asked["name"], "status": "cancelled", "error": NOT_EXECUTED}
            )
        ordered = [results[call["id"]] for call in message.tool_calls]
        Message.objects.filter(pk=message.pk).update(tool_results=ordered)


def window_start(thread_id: uuid.UUID, last_seq: int, limit: int) -> int:
    """The first message number of a window of at most ``limit`` messages that ends at ``last_seq``.

    A window begins with a user message, so that no result rides without its call; the newest message always rides.
    """
    newest = list(
        Message.objects.filter(thread_id=thread_id, seq__lte=last_seq)
        .order_by("-seq")
        .values_list("seq", "role")[:limit]
    )
    user_seqs = [seq for seq, role in newest if role == Message.Role.USER]
    return min(user_seqs, default=last_seq)


def load_messages(thread_id: uuid.UUID, first_seq: int) -> list[dict[str, Any]]:
    """The messages from ``first_seq`` on, each call directly followed by its result."""
    messages: list[dict[str, Any]] = []
    for row in Message.objects.filter(thread_id=thread_id, seq__gte=first_seq).order_by("seq"):
        messages.extend(as_prompt(row))
    return messages


def as_prompt(row: Message) -> list[dict[str, Any]]:
    """One stored message as prompt messages. A blank assistant message is not sent."""
    if row.role == Message.Role.USER:
        return [{"role": "user", "content": row.content}]
    if not row.content and not row.tool_calls:
        return []
    results = {result["id"]: result for result in row.tool_results}
    assistant = {"role": "assistant", "content": row.content, "tool_calls": row.tool_calls}
    return [
        assistant,
        *(
            {
                "role": "tool",
                "id": call["id"],
                "name": call["name"],
                "content": result_text(results.get(call["id"], {"error": NOT_EXECUTED})),
                "status": results.get(call["id"], {}).get("status", "cancelled"),
            }
            for call in row.tool_calls
        ),
    ]
