"""Frames are numbered without a gap, belong to their transaction, and end once."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from agora_agent.ids import new_id
from agora_agent.models import Frame, Stream
from agora_agent.streaming import frames
from agora_agent.streaming.frames import MAX_FRAME_BYTES, FrameData
from agora_agent.streaming.wire import dumps


def text(delta: str) -> FrameData:
    return FrameData("", {"delta": delta})


@pytest.fixture
def stream(db: None) -> uuid.UUID:
    stream_id = new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
    return stream_id


def append(stream_id: uuid.UUID, *new: FrameData) -> list[int]:
    with transaction.atomic():
        return frames.append(stream_id, new)


def test_numbers_continue_from_append_to_append(stream: uuid.UUID) -> None:
    assert append(stream, text("a"), text("b")) == [1, 2]
    assert append(stream, FrameData("title", {"title": "t"})) == [3]
    batch = frames.read(stream)
    assert batch is not None
    assert [(f.seq, f.event) for f in batch.frames] == [(1, ""), (2, ""), (3, "title")]
    assert (batch.last_seq, batch.closed) == (3, False)


def test_reading_resumes_after_a_number_and_stops_at_the_limit(stream: uuid.UUID) -> None:
    append(stream, *[text(str(n)) for n in range(1, 8)])
    batch = frames.read(stream, after=2, limit=3)
    assert batch is not None
    assert [f.seq for f in batch.frames] == [3, 4, 5]


def test_an_unknown_stream_reads_as_none(db: None) -> None:
    assert frames.read(new_id()) is None


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_frame_leaves_no_gap() -> None:
    stream_id = new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
        frames.append(stream_id, [text("a")])
    with pytest.raises(RuntimeError), transaction.atomic():  # noqa: PT012
        assert frames.append(stream_id, [text("lost")]) == [2]
        raise RuntimeError
    assert append(stream_id, text("b")) == [2]


@pytest.mark.django_db(transaction=True)
def test_writing_without_a_transaction_is_refused() -> None:
    with pytest.raises(transaction.TransactionManagementError):
        frames.append(new_id(), [text("a")])
    with pytest.raises(transaction.TransactionManagementError):
        frames.close(new_id(), "done")


def test_the_first_end_stands(stream: uuid.UUID) -> None:
    append(stream, text("a"))
    with transaction.atomic():
        assert frames.close(stream, "done", last=[FrameData("cancelled", {"kind": "cancelled"})])
    with transaction.atomic():
        assert not frames.close(stream, "error", {"code": "run_failed"}, last=[text("late")])
    batch = frames.read(stream)
    assert batch is not None
    assert [f.event for f in batch.frames] == ["", "cancelled"]
    assert (batch.last_seq, batch.closed, batch.terminal_event) == (2, True, "done")


def test_frames_after_the_end_are_dropped(stream: uuid.UUID) -> None:
    with transaction.atomic():
        frames.close(stream, "done")
    assert append(stream, text("late")) == []
    assert not Frame.objects.filter(stream_id=stream).exists()


def test_frames_of_a_stream_that_does_not_exist_are_dropped(db: None) -> None:
    assert append(new_id(), text("a")) == []


def test_an_append_is_three_queries(stream: uuid.UUID, django_assert_num_queries: Any) -> None:
    with transaction.atomic(), django_assert_num_queries(3):
        frames.append(stream, [text(str(n)) for n in range(20)])


def test_values_reach_readers_in_plain_json(stream: uuid.UUID) -> None:
    some_id = uuid.uuid4()
    append(
        stream,
        FrameData(
            "component",
            {
                "amount": Decimal("10.50"),
                "big": 2**53,
                "safe": 2**53 - 1,
                "at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))),
                "day": dt.date(2026, 1, 2),
                "id": some_id,
                "tagged": {"$date": "not a date"},
                "list": (1, None, True),
            },
        ),
    )
    batch = frames.read(stream)
    assert batch is not None
    assert batch.frames[0].data == {
        "amount": "10.50",
        "big": "9007199254740992",
        "safe": 2**53 - 1,
        "at": "2026-01-02T01:04:05Z",
        "day": "2026-01-02",
        "id": str(some_id),
        "tagged": {"$date": "not a date"},
        "list": [1, None, True],
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\x00b", "a\u2400b"),
        ("\ud83d\ude00", "\U0001f600"),
        ("x\udc00", "x\ufffd"),
        ("\u2028\x85\r\n", "\u2028\x85\r\n"),
    ],
)
def test_text_is_stored_as_every_database_can_hold_it(stream: uuid.UUID, given: str, shown: str) -> None:
    append(stream, text(given), FrameData("component", {"data": {given: [given]}}))
    batch = frames.read(stream)
    assert batch is not None
    assert batch.frames[0].data == {"delta": shown}
    assert batch.frames[1].data == {"data": {shown: [shown]}}


def test_a_value_that_is_not_json_is_refused(stream: uuid.UUID) -> None:
    with pytest.raises(ValueError):
        append(stream, FrameData("component", {"v": float("nan")}))
    with pytest.raises(TypeError):
        append(stream, FrameData("component", {"v": object()}))
    assert append(stream, text("a")) == [1]


def test_an_event_name_cannot_break_a_line(stream: uuid.UUID) -> None:
    with pytest.raises(ValueError):
        append(stream, FrameData("x\nid: 999", {}))


@pytest.mark.parametrize(("event", "key"), [("", "delta"), ("reasoning", "text")])
def test_long_text_is_spread_over_frames(stream: uuid.UUID, event: str, key: str) -> None:
    long = "\x01é\U0001f600" * 40000
    numbers = append(stream, FrameData(event, {"runId": "r", key: long}))
    assert len(numbers) > 1
    batch = frames.read(stream)
    assert batch is not None
    assert "".join(f.data[key] for f in batch.frames) == long
    assert all(
        len(dumps(f.data).encode()) <= MAX_FRAME_BYTES and f.data["runId"] == "r" for f in batch.frames
    )


def test_what_is_too_large_for_a_frame_is_left_out_by_name(stream: uuid.UUID) -> None:
    append(
        stream,
        FrameData(
            "tool-result", {"runId": "r", "id": "c1", "status": "executed", "output": {"v": "x" * 2_000_000}}
        ),
    )
    batch = frames.read(stream)
    assert batch is not None
    assert batch.frames[0].data == {
        "runId": "r",
        "id": "c1",
        "status": "executed",
        "output": None,
        "truncated": ["output"],
    }


@pytest.mark.django_db(transaction=True)
def test_parallel_writers_leave_no_gap_and_no_error() -> None:
    stream_id = new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
    start = threading.Barrier(8)
    errors: list[BaseException] = []
    numbers: list[int] = []

    def write(writer: int) -> None:
        try:
            start.wait()
            for n in range(25):
                with transaction.atomic():
                    numbers.extend(frames.append(stream_id, [text(f"{writer}:{n}")]))
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    batch = frames.read(stream_id)
    assert batch is not None
    assert [f.seq for f in batch.frames] == list(range(1, 201))
    assert sorted(numbers) == list(range(1, 201))
    for writer in range(8):
        own = [f.data["delta"] for f in batch.frames if f.data["delta"].startswith(f"{writer}:")]
        assert own == [f"{writer}:{n}" for n in range(25)]


@pytest.mark.django_db(transaction=True)
def test_outer_work_survives_an_append_to_an_ended_stream() -> None:
    stream_id, other = new_id(), new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
        frames.close(stream_id, "done")
    with transaction.atomic():
        Stream.objects.create(pk=other)
        assert frames.append(stream_id, [text("late")]) == []
        assert Stream.objects.filter(pk=other).exists()
    assert Stream.objects.filter(pk=other).exists()


@pytest.mark.django_db(transaction=True)
def test_two_enders_leave_one_end() -> None:
    stream_id = new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
    start = threading.Barrier(4)
    won: list[str] = []

    def end(name: str) -> None:
        try:
            start.wait()
            with transaction.atomic():
                if frames.close(stream_id, "error", {"code": name}, last=[text(name)]):
                    won.append(name)
        except DatabaseError:  # pragma: no cover - would be a bug, shown by the assertion below
            won.append("broken")
        finally:
            connection.close()

    threads = [threading.Thread(target=end, args=(f"e{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch = frames.read(stream_id)
    assert batch is not None
    assert len(won) == 1
    assert batch.terminal_data == {"code": won[0]}
    assert [f.data["delta"] for f in batch.frames] == won
