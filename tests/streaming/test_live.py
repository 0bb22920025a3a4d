"""Text of a running model call is shown at once, gathered while it flows, and never left waiting in a pause."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest
from django.db import transaction

from agora_agent.exceptions import Fenced
from agora_agent.ids import new_id
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData, StoredFrame
from agora_agent.streaming.live import LiveText, rewind, step_start
from agora_agent.streaming.wakeup import on_wake

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stream() -> uuid.UUID:
    stream_id = new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
    return stream_id


def stored(stream_id: uuid.UUID) -> list[StoredFrame]:
    batch = frames.read(stream_id)
    assert batch is not None
    return batch.frames


def shown(stream_id: uuid.UUID) -> str:
    return "".join(frame.data["delta"] for frame in stored(stream_id) if frame.event == "")


def allow() -> None:
    return None


def test_the_first_delta_is_written_at_once(stream: uuid.UUID) -> None:
    LiveText(stream, allow, interval=60).text("Hel")
    assert shown(stream) == "Hel"


def test_later_deltas_are_gathered_into_one_frame(stream: uuid.UUID) -> None:
    live = LiveText(stream, allow, interval=60)
    for delta in "Hello":
        live.text(delta)
    live.flush()
    assert [frame.data["delta"] for frame in stored(stream)] == ["H", "ello"]


def test_text_that_waits_is_shown_though_the_model_pauses(stream: uuid.UUID) -> None:
    moved = threading.Semaphore(0)

    def listener(stream_id: uuid.UUID) -> None:
        if stream_id == stream:
            moved.release()

    on_wake(listener)
    live = LiveText(stream, allow, interval=0.02)
    live.text("Hel")
    live.text("lo")
    assert moved.acquire(timeout=5)
    assert moved.acquire(timeout=5)
    assert shown(stream) == "Hello"


def test_order_of_answer_and_reasoning_is_kept(stream: uuid.UUID) -> None:
    run_id = new_id()
    live = LiveText(stream, allow, interval=60, run_id=run_id)
    live.reasoning("hm")
    live.reasoning(" so")
    live.text("A")
    live.text("B")
    live.reasoning("then")
    live.flush()
    assert [(frame.event, frame.data) for frame in stored(stream)] == [
        ("reasoning", {"runId": str(run_id), "text": "hm"}),
        ("reasoning", {"runId": str(run_id), "text": " so"}),
        ("", {"delta": "AB", "runId": str(run_id)}),  # a delegated run's words say whose they are
        ("reasoning", {"runId": str(run_id), "text": "then"}),
    ]


def test_a_character_split_over_two_deltas_arrives_whole(stream: uuid.UUID) -> None:
    live = LiveText(stream, allow, interval=0)
    live.text("\ud83d")
    live.text("\ude00!")
    live.text("\udc00")
    live.flush()
    assert shown(stream) == "\U0001f600!\ufffd"


def test_a_half_character_at_the_end_is_replaced(stream: uuid.UUID) -> None:
    live = LiveText(stream, allow, interval=0)
    live.text("a\ud83d")
    live.flush()
    assert shown(stream) == "a\ufffd"


def refuse_from(call: int) -> Callable[[], None]:
    calls = iter(range(1, 1000))

    def guard() -> None:
        if next(calls) >= call:
            raise Fenced

    return guard


def test_a_writer_that_lost_its_run_writes_nothing_more(stream: uuid.UUID) -> None:
    live = LiveText(stream, refuse_from(2), interval=0)
    live.text("mine")
    with pytest.raises(Fenced):
        live.text("not mine")
    assert shown(stream) == "mine"


def test_a_fence_met_in_a_pause_surfaces_at_the_next_call(stream: uuid.UUID) -> None:
    fenced = threading.Event()
    passed = iter([True])

    def guard() -> None:
        if not next(passed, False):
            fenced.set()
            raise Fenced

    live = LiveText(stream, guard, interval=0.02)
    live.text("mine")
    live.text("not mine")
    assert fenced.wait(5)
    with pytest.raises(Fenced):
        live.flush()
    assert shown(stream) == "mine"


def test_at_most_twenty_frames_a_second(stream: uuid.UUID) -> None:
    live = LiveText(stream, allow)
    started = time.monotonic()
    while time.monotonic() - started < 0.5:
        live.text("x")
        threading.Event().wait(0.002)
    live.flush()
    assert 2 <= len(stored(stream)) <= 0.5 / 0.05 + 3


def test_a_repeated_step_takes_back_its_text(stream: uuid.UUID) -> None:
    run_id = new_id()
    with transaction.atomic():
        frames.append(
            stream,
            [
                FrameData("step", {"runId": str(run_id), "index": 0, "phase": "start"}),
                FrameData("", {"delta": "kept"}),
                FrameData("step", {"runId": str(run_id), "index": 1, "phase": "start"}),
                FrameData("", {"delta": "stale"}),
            ],
        )
    after = step_start(stream, run_id, 1)
    assert after == 3
    with transaction.atomic():
        assert rewind(stream, run_id, after)
    assert stored(stream)[-1] == StoredFrame(5, "rewind", {"runId": str(run_id), "after": 3})


def test_a_step_that_showed_nothing_needs_no_rewind(stream: uuid.UUID) -> None:
    run_id = new_id()
    with transaction.atomic():
        frames.append(stream, [FrameData("step", {"runId": str(run_id), "index": 0, "phase": "start"})])
        assert not rewind(stream, run_id, step_start(stream, run_id, 0))
    assert len(stored(stream)) == 1
    assert step_start(stream, new_id(), 0) == 0
