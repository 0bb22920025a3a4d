"""Every reader gets every frame once, in order, however it arrives: history, live, other threads, slow readers."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from agora_agent.ids import new_id
from agora_agent.streaming import frames
from agora_agent.streaming import hub as hub_module
from agora_agent.streaming.frames import FrameData
from agora_agent.streaming.hub import End, Hub, Item, Subscription, hub

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stream() -> uuid.UUID:
    stream_id = new_id()
    with transaction.atomic():
        frames.open_stream(stream_id)
    return stream_id


def write(stream_id: uuid.UUID, *deltas: str) -> None:
    with transaction.atomic():
        frames.append(stream_id, [FrameData("", {"delta": delta}) for delta in deltas])


def end(stream_id: uuid.UUID) -> None:
    with transaction.atomic():
        frames.close(stream_id, "done")


def in_thread(function: Callable[..., Any], *arguments: Any) -> Awaitable[None]:
    def work() -> None:
        try:
            function(*arguments)
        finally:
            connections.close_all()

    return asyncio.to_thread(work)


async def collect(subscription: Subscription) -> tuple[list[int], End]:
    numbers: list[int] = []
    async with subscription:
        while True:
            for item in await asyncio.wait_for(subscription.next(20), 20):
                if isinstance(item, End):
                    return numbers, item
                numbers.append(item.frame.seq)


def test_history_then_live_then_the_end(stream: uuid.UUID) -> None:
    write(stream, "a", "b")

    async def scenario() -> tuple[list[int], End]:
        reader = hub.follow(stream)
        first = await reader.next(10)
        await in_thread(write, stream, "c")
        await in_thread(end, stream)
        rest, terminal = await collect(reader)
        return [item.frame.seq for item in first if isinstance(item, Item)] + rest, terminal

    numbers, terminal = asyncio.run(scenario())
    assert numbers == [1, 2, 3]
    assert terminal == End("done", {})


def test_readers_at_different_places_each_get_what_they_miss(stream: uuid.UUID) -> None:
    write(stream, *"abcdefgh")

    async def scenario() -> list[tuple[list[int], End]]:
        readers = [asyncio.create_task(collect(hub.follow(stream, after))) for after in (0, 3, 8, 0)]
        await in_thread(write, stream, "i")
        await in_thread(end, stream)
        return await asyncio.gather(*readers)

    assert [numbers for numbers, _ in asyncio.run(scenario())] == [
        list(range(1, 10)),
        list(range(4, 10)),
        [9],
        list(range(1, 10)),
    ]


@pytest.mark.parametrize("last", ["frame", "end"])
def test_what_is_written_between_history_and_live_arrives_once(
    stream: uuid.UUID, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    write(stream, "1", "2", "3")
    own = Hub()
    original = frames.read_frames
    slipped_in = threading.Event()

    def read_then_write(*arguments: Any) -> Any:
        rows = original(*arguments)
        if not slipped_in.is_set():
            slipped_in.set()
            write(stream, "4")
            if last == "end":
                end(stream)
        return rows

    monkeypatch.setattr(frames, "read_frames", read_then_write)

    async def scenario() -> list[tuple[list[int], End]]:
        readers = [asyncio.create_task(collect(own.follow(stream, after))) for after in (0, 2)]
        await asyncio.to_thread(slipped_in.wait, 10)
        if last == "frame":
            await in_thread(end, stream)
        return await asyncio.gather(*readers)

    assert [numbers for numbers, _ in asyncio.run(scenario())] == [[1, 2, 3, 4], [3, 4]]


def test_a_burst_beyond_the_queue_reaches_a_slow_reader_whole(
    stream: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "QUEUE_FRAMES", 5)

    async def scenario() -> list[int]:
        numbers: list[int] = []
        async with hub.follow(stream) as reader:
            await in_thread(write, stream, *[str(n) for n in range(300)])
            await in_thread(end, stream)
            while True:
                items = await reader.next(10)
                assert len(items) <= 5 + 1
                for item in items:
                    if isinstance(item, End):
                        return numbers
                    numbers.append(item.frame.seq)
                await asyncio.sleep(0.001)

    assert asyncio.run(scenario()) == list(range(1, 301))


def test_frames_written_without_a_wake_up_arrive_within_a_poll(stream: uuid.UUID) -> None:
    """As from another process: nothing rings."""

    def write_silently() -> None:
        with transaction.atomic():
            frames.append(stream, [FrameData("", {"delta": "quiet"})])
            connection.run_on_commit.clear()

    async def scenario() -> list[Item | End]:
        async with hub.follow(stream) as reader:
            assert await reader.next(0.5) == []
            await in_thread(write_silently)
            return await reader.next(hub_module.SLOWEST_POLL_SECONDS + 1)

    assert len(asyncio.run(scenario())) == 1


def test_a_wake_up_from_another_thread_beats_the_poll(
    stream: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "FASTEST_POLL_SECONDS", 30.0)
    monkeypatch.setattr(hub_module, "SLOWEST_POLL_SECONDS", 30.0)
    own = Hub()
    hub_module.wakeup.on_wake(own.ring)

    async def scenario() -> list[Item | End]:
        async with own.follow(stream) as reader:
            assert await reader.next(0.2) == []
            await in_thread(write, stream, "now")
            return await reader.next(5)

    assert len(asyncio.run(scenario())) == 1


def test_silence_gives_an_empty_batch_for_a_keep_alive(stream: uuid.UUID) -> None:
    async def scenario() -> list[Item | End]:
        async with hub.follow(stream) as reader:
            return await reader.next(0.05)

    assert asyncio.run(scenario()) == []


def test_a_stream_that_does_not_exist_ends_nameless() -> None:
    async def scenario() -> tuple[list[int], End]:
        return await collect(hub.follow(new_id()))

    assert asyncio.run(scenario()) == ([], End("", {}))


def test_readers_that_leave_leave_nothing_behind(stream: uuid.UUID) -> None:
    own = Hub()

    async def scenario() -> None:
        for _ in range(50):
            async with own.follow(stream) as reader:
                await reader.next(0.001)
        tasks = [asyncio.create_task(collect(own.follow(stream))) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert own.count() == 20
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
    assert own.count() == 0
    gc.collect()
    poller = own._thread
    if poller is not None:
        poller.join(5)
        assert not poller.is_alive()


def test_all_readers_share_one_poll(stream: uuid.UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Hub()
    other = new_id()
    with transaction.atomic():
        frames.open_stream(other)
    pollers: set[int] = set()
    reads: list[tuple[Any, ...]] = []
    read_frames, heads = frames.read_frames, frames.heads

    def seen_heads(ids: Any) -> Any:
        pollers.add(threading.get_ident())
        return heads(ids)

    def seen_reads(*arguments: Any) -> Any:
        reads.append(arguments)
        return read_frames(*arguments)

    monkeypatch.setattr(frames, "heads", seen_heads)
    monkeypatch.setattr(frames, "read_frames", seen_reads)

    async def scenario() -> None:
        readers = [asyncio.create_task(collect(own.follow(stream))) for _ in range(30)]
        readers += [asyncio.create_task(collect(own.follow(other)))]
        await asyncio.sleep(0.3)
        await in_thread(write, stream, "a")
        await in_thread(end, stream)
        await in_thread(end, other)
        await asyncio.gather(*readers)

    asyncio.run(scenario())
    assert len(pollers) == 1
    assert len(reads) == 1


def test_a_database_that_fails_for_a_moment_costs_no_frame(
    stream: uuid.UUID, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub_module, "SLOWEST_POLL_SECONDS", 0.05)
    heads = frames.heads
    failures = iter([True, True])

    def failing(ids: Any) -> Any:
        if next(failures, False):
            raise ConnectionError("gone away")
        return heads(ids)

    monkeypatch.setattr(frames, "heads", failing)
    write(stream, "a")
    end(stream)

    async def scenario() -> tuple[list[int], End]:
        return await collect(Hub().follow(stream))

    assert asyncio.run(scenario()) == ([1], End("done", {}))
    assert "streams cannot be read" in caplog.text


def test_two_event_loops_read_at_once(stream: uuid.UUID) -> None:
    results: list[list[int]] = []
    ready = threading.Barrier(3)

    def loop() -> None:
        async def scenario() -> list[int]:
            subscription = hub.follow(stream)
            ready.wait()
            return (await collect(subscription))[0]

        results.append(asyncio.run(scenario()))

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    write(stream, "a", "b")
    end(stream)
    for thread in threads:
        thread.join()
    assert results == [[1, 2], [1, 2]]
