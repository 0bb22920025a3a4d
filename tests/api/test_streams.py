"""Streams over real HTTP, read byte for byte: nothing lost, nothing doubled, nothing held, nobody else's."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.db import connections
from rest_framework.authtoken.models import Token

from agora_agent.api import capacity
from agora_agent.models import AgentRun
from agora_agent.streaming.hub import hub
from agora_agent.streaming.wire import dumps
from tests.api.rows import end, park, say, signed_in, start, write
from tests.clerk.model import ClerkModel
from tests.support.servers import ROOT, as_process, environment, in_thread
from tests.support.sse import Event, Parser, parse
from tests.support.turns import ended, pending, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server(transactional_db: None) -> Iterator[str]:
    """uvicorn in this process; when it is gone nothing of its streams is left."""
    with in_thread() as url:
        yield url
    until(lambda: not hub.count() and not capacity.held(), "streams to be given back")
    until(lambda: hub._thread is None, "the hub to rest")


@pytest.fixture(params=["daphne", "uvicorn"])
def process(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[str]:
    """A server as a process of its own."""
    with as_process(request.param) as url:
        yield url


def cookies(user: Any) -> dict[str, str]:
    return {name: morsel.value for name, morsel in signed_in(user).cookies.items()}


@contextmanager
def opened(url: str, user: Any, path: str, **options: Any) -> Iterator[httpx.Response]:
    """A stream that has been answered with 200."""
    by_session = "authorization" not in options.get("headers", {})
    with (
        httpx.Client(cookies=cookies(user) if by_session else None, base_url=url, timeout=20) as client,
        client.stream(options.pop("method", "GET"), f"/agent/{path}", **options) as response,
    ):
        assert response.status_code == 200, response.read()
        yield response


class Reading:
    """Takes events from a response one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.parser = Parser()
        self._chunks = response.iter_raw()
        self._events: list[Event] = []

    def next(self) -> Event:
        while not self._events:
            self._events.extend(self.parser.feed(next(self._chunks)))
        return self._events.pop(0)

    def rest(self) -> list[Event]:
        return self._events + [event for chunk in self._chunks for event in self.parser.feed(chunk)]

    def until_comment(self) -> None:
        while not self.parser.comments:
            self._events.extend(self.parser.feed(next(self._chunks)))


def read_all(url: str, user: Any, path: str, **options: Any) -> list[Event]:
    with opened(url, user, path, **options) as response:
        return parse(response.iter_raw())


def recorded(run: AgentRun) -> None:
    """A stream with some of everything, ended."""
    say(run.pk, "Hel", "lo")
    write(
        run.pk,
        ("tool-call", {"runId": str(run.pk), "id": "c1", "toolName": "t", "kind": "read", "input": {}}),
    )
    write(run.pk, ("tool-result", {"runId": str(run.pk), "id": "c1", "status": "executed", "output": 4}))
    say(run.pk, " world")
    end(run.pk)


def test_a_stream_has_its_headers_meta_first_and_one_end(process: str, alice: Any) -> None:
    run = start(alice)
    recorded(run)
    with opened(process, alice, f"chat/{run.pk}/stream", headers={"accept": "text/event-stream"}) as response:
        events = parse(response.iter_raw())
    headers = response.headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "private, no-store, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-agent-run-id"] == str(run.pk)
    assert headers["x-agent-thread-id"] == str(run.thread_id)
    assert "etag" not in headers
    assert [(event.event, event.id) for event in events] == [
        ("meta", None),
        ("", "1"),
        ("", "2"),
        ("tool-call", "3"),
        ("tool-result", "4"),
        ("", "5"),
        ("done", None),
    ]
    assert events[0].data == {"runId": str(run.pk), "threadId": str(run.thread_id)}
    assert events[-1].data == {}


def test_resuming_at_every_frame_gives_the_recorded_rest(server: str, alice: Any) -> None:
    run = start(alice)
    recorded(run)
    meta, *frames, done = read_all(server, alice, f"chat/{run.pk}/stream")
    for after in range(len(frames) + 1):
        expected = [meta.data, *[(event.id, event.data) for event in frames[after:]], done.data]
        for path, headers in (
            (f"chat/{run.pk}/stream?after={after}", {}),
            (f"chat/{run.pk}/stream/", {"last-event-id": str(after)}),
            (f"chat/{run.pk}/stream?after={after}", {"last-event-id": "1"}),
        ):
            first, *rest, last = read_all(server, alice, path, headers=headers)
            assert [first.data, *[(event.id, event.data) for event in rest], last.data] == expected


def test_a_number_beyond_the_end_and_a_header_that_is_none(server: str, alice: Any) -> None:
    run = start(alice)
    recorded(run)
    assert len(read_all(server, alice, f"chat/{run.pk}/stream?after=999")) == 2
    for bad in ("x", "-1", "5 data: z", "9" * 30, ""):
        assert len(read_all(server, alice, f"chat/{run.pk}/stream", headers={"last-event-id": bad})) == 7


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", "9" * 30, "", "%00", "%C2%B2", "1%0d%0adata: z"])
def test_a_place_that_is_none_is_400_in_json(server: str, alice: Any, bad: str) -> None:
    run = start(alice)
    response = httpx.get(
        f"{server}/agent/chat/{run.pk}/stream?after={bad}",
        cookies=cookies(alice),
        headers={"accept": "text/event-stream"},
    )
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert "after" in response.json()["errors"]


def test_who_is_refused_is_refused_in_json_before_the_first_byte(process: str, alice: Any, bob: Any) -> None:
    run = start(alice)
    child = start(alice, parent=run)
    headers = {"accept": "text/event-stream"}
    for path, user, status in (
        (f"chat/{run.pk}/stream", None, 401),
        (f"chat/{run.pk}/stream", bob, 404),
        (f"chat/{child.pk}/stream", alice, 404),
        ("chat/nonsense/stream", alice, 404),
    ):
        with httpx.Client(cookies=cookies(user) if user else None) as client:
            response = client.get(f"{process}/agent/{path}", headers=headers)
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"


def test_several_readers_between_history_and_live(server: str, alice: Any) -> None:
    run = start(alice)
    say(run.pk, "1", "2", "3")
    results: dict[int, list[str | None]] = {}
    reading = threading.Barrier(4)

    token = csrf_free(alice)

    def read(after: int) -> None:
        with opened(server, alice, f"chat/{run.pk}/stream?after={after}", headers=token) as response:
            reader = Reading(response)
            reader.next()
            reading.wait(20)
            results[after] = [event.id for event in reader.rest()]

    threads = [threading.Thread(target=read, args=(after,)) for after in (0, 2, 3)]
    for thread in threads:
        thread.start()
    reading.wait(20)
    for number in range(4, 40):
        say(run.pk, str(number))
    end(run.pk)
    for thread in threads:
        thread.join(20)
    assert results == {after: [*[str(n) for n in range(after + 1, 40)], None] for after in (0, 2, 3)}


WRITER = """
import sys, time, uuid
import django
django.setup()
from django.db import transaction
from agora_agent.streaming import frames
from agora_agent.streaming.frames import FrameData
stream = uuid.UUID(sys.argv[1])
for number in range(20):
    with transaction.atomic():
        frames.append(stream, [FrameData("", {"delta": str(number), "at": time.time()})])
    time.sleep(0.05)
with transaction.atomic():
    frames.close(stream, "done")
time.sleep(0.2)
"""


def written_by_another_process(run: AgentRun, first: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"{first}\n{WRITER}", str(run.pk)]
    return subprocess.Popen(command, cwd=ROOT, env=environment())


class BrokenLayer:
    """A channel layer whose every method raises."""

    def __init__(self, **config: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(name)


@pytest.mark.parametrize(
    "layers",
    [
        {},
        {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
        {"default": {"BACKEND": "tests.api.test_streams.BrokenLayer"}},
        {"default": {"BACKEND": "no.such.Layer"}},
    ],
    ids=["none", "in-memory", "broken", "missing"],
)
def test_frames_of_another_process_arrive_within_a_poll(
    transactional_db: None, alice: Any, settings: Any, layers: Any
) -> None:
    settings.CHANNEL_LAYERS = layers
    run = start(alice)
    late: list[float] = []
    with in_thread() as url, opened(url, alice, f"chat/{run.pk}/stream") as response:
        reader = Reading(response)
        reader.next()
        writer = written_by_another_process(run)
        for number in range(20):
            event = reader.next()
            assert event.data["delta"] == str(number)
            late.append(time.time() - event.data["at"])
        assert [event.event for event in reader.rest()] == ["done"]
        assert writer.wait(20) == 0
    # The first may have to wait for a slow poll; where one comes, the next ones are looked for quickly.
    assert late[0] < 2.0
    assert sorted(late)[len(late) // 2] < 0.5


LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer"}}


@pytest.mark.redis
def test_a_channel_layer_between_processes_beats_the_poll(
    transactional_db: None, alice: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agora_agent.streaming import hub as hub_module

    settings.CHANNEL_LAYERS = LAYERS
    monkeypatch.setattr(hub_module, "SLOWEST_POLL_SECONDS", 60.0)
    monkeypatch.setattr(hub_module, "FASTEST_POLL_SECONDS", 60.0)
    run = start(alice)
    with in_thread() as url, opened(url, alice, f"chat/{run.pk}/stream") as response:
        reader = Reading(response)
        reader.next()
        writer = written_by_another_process(
            run, f"from tests import settings; settings.CHANNEL_LAYERS = {LAYERS!r}"
        )
        late = [time.time() - reader.next().data["at"] for _ in range(20)]
        assert [event.event for event in reader.rest()] == ["done"]
        assert writer.wait(20) == 0
    assert max(late) < 1.0


MIDDLEWARE_THAT_CHANGES_RESPONSES = [
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "tests.api.test_streams.SyncMiddleware",
]


class SyncMiddleware:
    """As many projects have one."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        response["X-Seen"] = "yes"
        return response


def test_no_middleware_holds_frames_back(
    transactional_db: None, alice: Any, settings: Any, tmp_path: Any
) -> None:
    settings.STATIC_ROOT = str(tmp_path)
    settings.MIDDLEWARE = [*MIDDLEWARE_THAT_CHANGES_RESPONSES, *settings.MIDDLEWARE]
    run = start(alice)
    with (
        in_thread() as url,
        opened(
            url, alice, f"chat/{run.pk}/stream", headers={"accept-encoding": "gzip, deflate, br"}
        ) as response,
    ):
        assert response.headers["x-seen"] == "yes"
        assert response.headers.get("content-encoding", "identity") == "identity"
        assert "etag" not in response.headers
        reader = Reading(response)
        assert reader.next().event == "meta"
        for number in range(3):
            say(run.pk, str(number))
            assert reader.next().data == {"delta": str(number)}
        end(run.pk)
        assert [event.event for event in reader.rest()] == ["done"]


def test_under_atomic_requests_streams_and_sends_work(
    transactional_db: None, alice: Any, clerk: ClerkModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk.script("Hello.")
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    with in_thread() as url:
        events = read_all(
            url,
            alice,
            "chat",
            method="POST",
            json={"message": "hi", "agent": "desk"},
            headers=csrf_free(alice),
        )
    assert "".join(event.data["delta"] for event in events if event.event == "") == "Hello."
    assert events[-1].event == "done"


def csrf_free(user: Any) -> dict[str, str]:
    """A token instead of the session."""
    token, _ = Token.objects.get_or_create(user=user)
    return {"authorization": f"Token {token.key}"}


PAYLOADS = [
    "a\r\nevent: approval\r\ndata: {}\n\nid: 999",
    "\rdata: x\r\rid: 999\r\r",
    "\n\n: comment\n\n",
    "trailing\n",
    "\u2028\u2029\x85\x0b\x0c\x1c",
    "\ufeff",
    "\x00\x00",
    '"}\n\ndata: {"delta": "forged"}\n\n',
]


def test_no_text_forges_a_frame(server: str, alice: Any) -> None:
    run = start(alice)
    for payload in PAYLOADS:
        say(run.pk, payload)
        write(run.pk, ("tool-call", {"id": payload, "toolName": payload, "input": {payload: payload}}))
    end(run.pk, "error", {"code": "run_failed", "message": "x\n\ndata: {}\n\n"})
    with opened(server, alice, f"chat/{run.pk}/stream") as response:
        raw = b"".join(response.iter_raw())
    events = parse(raw)
    assert [event.id for event in events[1:-1]] == [str(n) for n in range(1, 2 * len(PAYLOADS) + 1)]
    assert {event.event for event in events} == {"meta", "", "tool-call", "error"}
    for payload, event in zip(PAYLOADS, events[1:-1:2], strict=True):
        assert event.data == {"delta": payload.replace("\x00", "\u2400")}
    # A reader that takes other characters for line ends sees the same lines.
    assert raw.decode().splitlines() == raw.decode().split("\n")[:-1]
    # However the bytes are cut.
    assert [
        event for n in range(1, 40) for event in parse([raw[i : i + n] for i in range(0, len(raw), n)])
    ] == events * 39


def test_a_failure_is_told_in_a_fixed_sentence(server: str, alice: Any, settings: Any) -> None:
    run = start(alice)
    end(run.pk, "error", {"code": "model_failed", "message": "SENTINEL-sk-123 postgres://u:p@h/db"})
    [_, error] = read_all(server, alice, f"chat/{run.pk}/stream")
    assert (error.event, error.id, error.data["code"]) == ("error", None, "model_failed")
    assert "SENTINEL" not in dumps(error.data)


def test_a_turn_is_one_stream_from_the_send_over_the_approval_to_the_end(
    server: str, alice: Any, clerk: ClerkModel
) -> None:
    from agora_agent.providers.scripted import Reply

    clerk.script(Reply("I will.", calls=[("send_mail", {"to": "a"})]), "Sent.")
    body = {"message": "mail a", "agent": "desk"}
    with opened(
        server,
        alice,
        "chat",
        method="POST",
        json=body,
        headers={**csrf_free(alice), "accept": "text/event-stream"},
    ) as response:
        reader = Reading(response)
        meta = reader.next()
        assert meta.event == "meta"
        run = AgentRun.objects.get(pk=meta.data["runId"])
        assert response.headers["x-agent-run-id"] == str(run.pk)
        event = reader.next()
        while event.event != "approval":
            event = reader.next()
        [call] = pending(run.pk)
        # A park never ends a stream; somebody who attaches now gets the same form.
        with opened(server, alice, f"chat/{run.pk}/stream") as second:
            later = Reading(second)
            seen = later.next()
            while seen.event != "approval":
                seen = later.next()
            assert (seen.id, seen.data) == (event.id, event.data)
        answer = httpx.post(
            f"{server}/agent/tool-call/approve",
            json={
                "runId": event.data["runId"],
                "toolCallId": event.data["id"],
                "digest": event.data["digest"],
            },
            headers=csrf_free(alice),
        )
        assert answer.status_code == 200, answer.content
        rest = reader.rest()
    assert ended(run.pk).status == "completed"
    assert "decision" in {event.event for event in rest}
    assert [event.event for event in rest].count("done") == 1
    assert rest[-1].event == "done"
    assert call.call_id == event.data["id"]
    replay = read_all(server, alice, f"chat/{run.pk}/stream")
    assert [frame.id for frame in replay[1:-1]] == [str(n) for n in range(1, len(replay) - 1)]
    assert replay[-len(rest) :] == rest


def test_readers_that_leave_are_let_go_at_once(server: str, alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "STREAM_MAX_PER_ACTOR": 50}
    run = start(alice)
    park(run)
    with opened(server, alice, f"chat/{run.pk}/stream") as response:
        Reading(response).next()
    until(lambda: not capacity.held(), "the first stream")
    before = threading.active_count()
    for _ in range(50):
        with opened(server, alice, f"chat/{run.pk}/stream") as response:
            reader = Reading(response)
            reader.next()
            assert capacity.held() >= 1
    until(lambda: not capacity.held() and not hub.count(), "fifty streams")
    until(lambda: threading.active_count() <= before + 2, "their threads")
    gc.collect()


def test_readers_of_a_process_that_leave_are_let_go_at_once(process: str, alice: Any) -> None:
    run = start(alice)
    headers = csrf_free(alice)

    def open_streams() -> int:
        return int(httpx.get(f"{process}/agent/health", headers=headers).json()["streams"])

    for _ in range(5):
        with opened(process, alice, f"chat/{run.pk}/stream") as response:
            reader = Reading(response)
            assert reader.next().event == "meta"
            assert open_streams() == 1
        began = time.monotonic()
        until(lambda: open_streams() == 0, "the stream to be given back")
        assert time.monotonic() - began < 2


@pytest.mark.postgres
def test_open_streams_hold_no_connection(server: str, alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "STREAM_MAX_PER_ACTOR": 50}
    settings.SESSION_SAVE_EVERY_REQUEST = True
    run = start(alice)

    def held() -> int:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    with httpx.Client(cookies=cookies(alice), timeout=20) as client:
        streams = [client.stream("GET", f"{server}/agent/chat/{run.pk}/stream") for _ in range(20)]
        responses = [stream.__enter__() for stream in streams]
        try:
            readers = [Reading(response) for response in responses]
            assert {reader.next().event for reader in readers} == {"meta"}
            # This test's own and the hub's.
            until(lambda: held() <= 3, f"connections to be closed, {held()} are open")
        finally:
            for stream in streams:
                stream.__exit__(None, None, None)


def test_a_quiet_stream_says_that_it_is_alive(server: str, alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "STREAM_KEEPALIVE_SECONDS": 0.2}
    run = start(alice)
    with opened(server, alice, f"chat/{run.pk}/stream") as response:
        reader = Reading(response)
        reader.next()
        reader.until_comment()
        assert reader.parser.comments[0] == "keep-alive"
        say(run.pk, "still here")
        assert reader.next().data == {"delta": "still here"}


def log_out(user: Any, client: Any) -> None:
    client.logout()


def deactivate(user: Any, client: Any) -> None:
    type(user).objects.filter(pk=user.pk).update(is_active=False)


def change_password(user: Any, client: Any) -> None:
    user.set_password("other")
    user.save()


def delete(user: Any, client: Any) -> None:
    user.delete()


@pytest.mark.parametrize("lose", [log_out, deactivate, change_password, delete])
@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_who_may_not_read_any_more_is_let_go(
    server: str, alice: Any, settings: Any, lose: Callable[[Any, Any], None], busy: bool
) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "STREAM_KEEPALIVE_SECONDS": 0.3}
    run = start(alice)
    browser = signed_in(alice)
    stop = threading.Event()

    def keep_writing() -> None:
        while not stop.wait(0.05):
            say(run.pk, "x")
        connections.close_all()

    with (
        httpx.Client(cookies={"sessionid": browser.cookies["sessionid"].value}, timeout=10) as client,
        client.stream("GET", f"{server}/agent/chat/{run.pk}/stream") as response,
    ):
        reader = Reading(response)
        assert reader.next().event == "meta"
        writer = threading.Thread(target=keep_writing)
        if busy:
            writer.start()
        reader.until_comment() if not busy else [reader.next() for _ in range(10)]
        lose(alice, browser)
        try:
            left = reader.rest()
        finally:
            stop.set()
            if busy:
                writer.join(10)
    assert all(event.event == "" for event in left)


def test_a_reader_by_token_or_right_is_let_go_when_it_is_taken_away(
    server: str, alice: Any, dave: Any, settings: Any
) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "STREAM_KEEPALIVE_SECONDS": 0.3}
    run = start(alice)
    for user, take_away in (
        (alice, lambda: Token.objects.filter(user=alice).delete()),
        (dave, lambda: dave.user_permissions.clear()),
    ):
        with (
            httpx.Client(headers=csrf_free(user), timeout=10) as client,
            client.stream("GET", f"{server}/agent/chat/{run.pk}/stream") as response,
        ):
            reader = Reading(response)
            reader.until_comment()
            take_away()
            assert reader.rest()[1:] == []


def test_streams_are_counted_by_actor_and_process(server: str, alice: Any, bob: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {
        **settings.AGORA_AGENT,
        "STREAM_MAX_PER_ACTOR": 2,
        "STREAM_MAX_PER_PROCESS": 3,
    }
    run, other = start(alice), start(bob)
    path, others = f"{server}/agent/chat/{run.pk}/stream", f"{server}/agent/chat/{other.pk}/stream"
    with opened(server, alice, f"chat/{run.pk}/stream"), opened(server, alice, f"chat/{run.pk}/stream"):
        refused = httpx.get(path, cookies=cookies(alice))
        assert (refused.status_code, refused.json()["code"]) == (429, "limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        before = AgentRun.objects.count()
        sent = httpx.post(
            f"{server}/agent/chat", json={"message": "hi", "agent": "desk"}, headers=csrf_free(alice)
        )
        assert sent.status_code == 429
        assert AgentRun.objects.count() == before
        with opened(server, bob, f"chat/{other.pk}/stream"):
            full = httpx.get(others, cookies=cookies(bob))
            assert (full.status_code, full.json()["code"]) == (503, "busy")
            assert int(full.headers["retry-after"]) >= 1
    until(lambda: not capacity.held(), "the streams to be given back")
    end(run.pk)
    assert read_all(server, alice, f"chat/{run.pk}/stream")[-1].event == "done"


def test_a_body_in_chunks_is_read_and_bounded(server: str, alice: Any) -> None:
    headers = {**csrf_free(alice), "content-type": "application/json"}

    def post(*chunks: bytes) -> httpx.Response:
        return httpx.post(f"{server}/agent/threads", content=iter(chunks), headers=headers)

    assert post(b'{"title": ', b'"In parts"}').json()["title"] == "In parts"
    assert post(b'{"title": "', *[b"x" * 65536] * 5, b'"}').status_code == 413
