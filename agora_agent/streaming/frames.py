"""The event log of a run: frames numbered without a gap, and exactly one end.

Every write needs an open transaction: a frame that belongs to a change is committed with it or not at all.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from django.db import router, transaction
from django.db.models import F

from agora_agent.db import DbNow
from agora_agent.models import AgentRun, Frame, Stream
from agora_agent.streaming.wakeup import notify
from agora_agent.streaming.wire import dumps, to_wire

#: The most that one frame may hold, in bytes of its JSON.
MAX_FRAME_BYTES = 65536

_EVENT_NAME = re.compile(r"[a-z0-9-]*")
# Which key of a text frame may be spread over several frames.
_TEXT_KEYS = {"": "delta", "reasoning": "text"}
_SPLIT_CHARS = 8192


class FrameData(NamedTuple):
    """A frame that has no number yet. ``event`` empty: assistant text."""

    event: str
    data: dict[str, Any]


class StoredFrame(NamedTuple):
    """A frame as readers get it."""

    seq: int
    event: str
    data: dict[str, Any]


class Batch(NamedTuple):
    """What was read of a stream. ``closed`` says that no frame will ever follow number ``last_seq``."""

    frames: list[StoredFrame]
    last_seq: int
    closed: bool
    terminal_event: str
    terminal_data: dict[str, Any]


class Head(NamedTuple):
    """How far a stream is."""

    last_seq: int
    closed: bool


def alias() -> str:
    """The database that holds runs and their frames."""
    return router.db_for_write(AgentRun)


def open_stream(stream_id: uuid.UUID) -> None:
    """Make the counter row of a run that is being started, in the open transaction."""
    _require_transaction()
    Stream.objects.using(alias()).create(pk=stream_id)


def append(stream_id: uuid.UUID, frames: Iterable[FrameData]) -> list[int]:
    """Add frames in the open transaction and wake the readers when it commits.

    Returns:
        Their numbers (a text frame that is too large for one becomes several); nothing if the stream has ended:
        then they are dropped.

    Raises:
        codec.Unencodable: data that is not JSON.
    """
    _require_transaction()
    ready = [part for frame in frames for part in _bounded(frame)]
    if not ready:
        return []
    moved = (
        Stream.objects.using(alias())
        .filter(pk=stream_id, closed_at=None)
        .update(last_seq=F("last_seq") + len(ready))
    )
    return _insert(stream_id, ready) if moved else []


def close(
    stream_id: uuid.UUID,
    terminal_event: Literal["done", "error"],
    terminal_data: dict[str, Any] | None = None,
    last: Sequence[FrameData] = (),
) -> bool:
    """End the stream in the open transaction, after the frames in ``last``. The first end stands.

    Returns:
        False if it had ended before: then nothing is written.
    """
    _require_transaction()
    ready = [part for frame in last for part in _bounded(frame)]
    ended = (
        Stream.objects.using(alias())
        .filter(pk=stream_id, closed_at=None)
        .update(
            last_seq=F("last_seq") + len(ready),
            closed_at=DbNow(),
            terminal_event=terminal_event,
            terminal_data=to_wire(terminal_data or {}),
        )
    )
    if ended:
        _insert(stream_id, ready)
    return bool(ended)


def read(stream_id: uuid.UUID, after: int = 0, limit: int = 500) -> Batch | None:
    """Up to ``limit`` frames after number ``after``; None if there is no such stream."""
    stream: tuple[Any, ...] | None = (
        Stream.objects.using(alias())
        .filter(pk=stream_id)
        .values_list("last_seq", "closed_at", "terminal_event", "terminal_data")
        .first()
    )
    if stream is None:
        return None
    last_seq, closed_at, terminal_event, terminal_data = stream
    # The end was read before the frames: what it says about the newest number is complete.
    frames = read_frames(stream_id, after, limit) if last_seq > after else []
    return Batch(frames, last_seq, closed_at is not None, terminal_event, terminal_data or {})


def read_frames(stream_id: uuid.UUID, after: int, limit: int) -> list[StoredFrame]:
    """Up to ``limit`` frames after number ``after``, in order."""
    rows: Iterable[tuple[Any, ...]] = (
        Frame.objects.using(alias())
        .filter(stream_id=stream_id, seq__gt=after)
        .order_by("seq")
        .values_list("seq", "event", "data")[:limit]
    )
    return [StoredFrame(*row) for row in rows]


def heads(stream_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Head]:
    """How far each of these streams is, in one query; those that do not exist are left out."""
    rows = (
        Stream.objects.using(alias())
        .filter(pk__in=list(stream_ids))
        .values_list("pk", "last_seq", "closed_at")
    )
    return {pk: Head(last_seq, closed_at is not None) for pk, last_seq, closed_at in rows}


def _require_transaction() -> None:
    if not transaction.get_connection(alias()).in_atomic_block:
        raise transaction.TransactionManagementError(
            "Frames are written inside the transaction of the change that they tell about."
        )


def _insert(stream_id: uuid.UUID, frames: Sequence[FrameData]) -> list[int]:
    using = alias()
    numbers: list[int] = []
    if frames:
        # Our own update holds the row's lock: nobody else moves the number before this transaction ends.
        last = Stream.objects.using(using).values_list("last_seq", flat=True).get(pk=stream_id)
        numbers = list(range(last - len(frames) + 1, last + 1))
        Frame.objects.using(using).bulk_create(
            Frame(stream_id=stream_id, seq=seq, event=frame.event, data=cast(Any, frame.data))
            for seq, frame in zip(numbers, frames, strict=True)
        )
    transaction.on_commit(partial(notify, stream_id), using=using, robust=True)
    return numbers


def _bounded(frame: FrameData) -> list[FrameData]:
    if not _EVENT_NAME.fullmatch(frame.event):
        raise ValueError(f"{frame.event!r} cannot be the name of an event")
    data = to_wire(frame.data)
    if _fits(data):
        return [FrameData(frame.event, data)]
    key = _TEXT_KEYS.get(frame.event)
    if key is not None and isinstance(data.get(key), str):
        text = data[key]
        return [
            FrameData(frame.event, data | {key: text[start : start + _SPLIT_CHARS]})
            for start in range(0, len(text), _SPLIT_CHARS)
        ]
    return [FrameData(frame.event, _cut(data))]


def _cut(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` without its largest members, whose names are listed under ``truncated``: the row has them."""
    sizes = sorted(((len(dumps(value)), key) for key, value in data.items()), reverse=True)
    cut: list[str] = []
    for _size, key in sizes:
        cut.append(key)
        data = {**data, key: None, "truncated": sorted(cut)}
        if _fits(data):
            return data
    raise ValueError(f"a frame may hold {MAX_FRAME_BYTES} bytes")


def _fits(data: dict[str, Any]) -> bool:
    return len(dumps(data).encode("utf-8", "replace")) <= MAX_FRAME_BYTES
