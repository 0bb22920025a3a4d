"""A run's stream as an HTTP response: everything that can be refused is refused before its first byte."""

from __future__ import annotations

import re
import uuid
import weakref
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from agora_agent.api.capacity import Lease
from agora_agent.api.readers import Reader, questions
from agora_agent.conf import agora_settings
from agora_agent.exceptions import InvalidInput, StreamNeedsAsgi, reader_message
from agora_agent.governance.shown import shown_frame
from agora_agent.models import AgentRun
from agora_agent.streaming import sse
from agora_agent.streaming.frames import StoredFrame
from agora_agent.streaming.hub import End, Item, hub

CONTENT_TYPE = "text/event-stream"

_NUMBER = re.compile(r"[0-9]{1,18}")


def require_asgi(request: Request) -> None:
    """Refuse where a stream would hold a worker, or be sent whole at its end.

    Raises:
        StreamNeedsAsgi: this request came over WSGI.
    """
    if not isinstance(request._request, ASGIRequest):
        raise StreamNeedsAsgi


def wants_stream(request: Request) -> bool:
    """False for a client that would rather have JSON than an event stream."""
    weights = {"application/json": 0.0, CONTENT_TYPE: 0.0}
    for media_range in request.headers.get("Accept", "*/*").split(","):
        media_type, *parameters = [part.strip().lower() for part in media_range.split(";")]
        if media_type in weights:
            weights[media_type] = max(weights[media_type], _quality(parameters))
    return weights["application/json"] <= weights[CONTENT_TYPE]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if re.fullmatch(r"q=(0(\.\d{0,3})?|1(\.0{0,3})?)", parameter):
            return float(parameter[2:])
    return 1.0


def resume_after(request: Request) -> int:
    """The number of the last frame that the client has; 0 for none. ``?after`` wins over the header.

    Raises:
        InvalidInput: ``?after`` is not a number.
    """
    asked = request.query_params.get("after")
    if asked is not None:
        if not _NUMBER.fullmatch(asked):
            raise InvalidInput(errors={"after": ["The number of a frame."]})
        return int(asked)
    last_id = request.headers.get("Last-Event-ID", "")
    return int(last_id) if _NUMBER.fullmatch(last_id) else 0


def stream(run: AgentRun, reader: Reader, lease: Lease, after: int = 0) -> StreamingHttpResponse:
    """The response. ``lease`` is released when the stream ends, however it ends."""
    response = StreamingHttpResponse(
        _chunks(run.pk, run.thread_id, after, reader, lease), content_type=CONTENT_TYPE
    )
    headers = {
        "Cache-Control": "private, no-store, no-transform",
        "X-Accel-Buffering": "no",
        "X-Agent-Run-Id": str(run.pk),
        "X-Agent-Thread-Id": str(run.thread_id),
        # Middlewares that compress leave alone what has an encoding.
        "Content-Encoding": "identity",
    }
    for name, value in headers.items():
        response[name] = value
    # A client may be gone before the first chunk is asked for: then nothing of the generator ever runs.
    response._resource_closers.append(lease.release)  # type: ignore[attr-defined]
    weakref.finalize(response, lease.release)
    return response


async def _chunks(
    run_id: uuid.UUID, thread_id: uuid.UUID, after: int, reader: Reader, lease: Lease
) -> AsyncIterator[bytes]:
    try:
        # In the request's own thread, which stays idle as long as the stream is open.
        await sync_to_async(_close_connections)()
        yield sse.encode("meta", {"runId": str(run_id), "threadId": str(thread_id)})
        look_again = monotonic() + agora_settings.STREAM_KEEPALIVE_SECONDS
        async with hub.follow(run_id, after) as subscription:
            while True:
                items = await subscription.next(max(0.0, look_again - monotonic()))
                if monotonic() >= look_again:
                    if not await questions.ask(reader.may_read):
                        return
                    look_again = monotonic() + agora_settings.STREAM_KEEPALIVE_SECONDS
                yield b"".join(_encode(item, reader) for item in items) if items else sse.KEEP_ALIVE
                if items and isinstance(items[-1], End):
                    return
    finally:
        lease.release()


def _encode(item: Item | End, reader: Reader) -> bytes:
    if isinstance(item, Item):
        return item.sse if reader.sees_all else _shown(item.frame)
    if item.event == "error":
        return sse.encode("error", _for_readers(item.data))
    return sse.encode(item.event, item.data) if item.event else b""


def _shown(frame: StoredFrame) -> bytes:
    return sse.encode(frame.event, shown_frame(frame.event, frame.data), frame.seq)


def _for_readers(data: dict[str, Any]) -> dict[str, Any]:
    if settings.DEBUG:
        return data
    code = str(data.get("code", "run_failed"))
    return {"code": code, "message": reader_message(code)}


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
