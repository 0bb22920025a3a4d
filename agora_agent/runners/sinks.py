"""Where a run's frames go: the stream of its top-level run. Only ``settle`` ends a stream, and only for that run."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.db import transaction

from agora_agent.agents.tool import EmitComponent
from agora_agent.governance.locking import retrying
from agora_agent.ids import new_id
from agora_agent.models import write_alias
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData
from agora_agent.turn.hooks import Frame


class StreamSink:
    """Appends to one stream in the transaction that is open."""

    def __init__(self, stream_id: uuid.UUID) -> None:
        self.stream_id = stream_id

    def append(self, *new_frames: Frame) -> None:
        frames.append(self.stream_id, [FrameData(event, data) for event, data in new_frames])


def component_emitter(stream_id: uuid.UUID, guard: Callable[[], None]) -> EmitComponent:
    """``ToolContext.emit_component``: shows a component at once; a repeated id replaces the one before."""

    def emit(name: str, data: dict[str, Any], id: str | None = None) -> str:  # noqa: A002
        shown = id or str(new_id())
        using = write_alias()

        def write() -> None:
            with transaction.atomic(using=using):
                frames.append(stream_id, [FrameData("component", {"id": shown, "name": name, "data": data})])
                guard()

        retrying(write, using)
        return shown

    return emit
