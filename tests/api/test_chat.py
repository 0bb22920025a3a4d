"""Starting a turn over HTTP: what is stored, what is refused, what a repeated send does."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from agora_agent.agents.registry import clear, isolated
from agora_agent.exceptions import LimitExceeded
from agora_agent.models import AgentRun, AuditEntry, IdempotencyKey, Message, Thread
from agora_agent.runners.maintenance import maintain
from agora_agent.turn import runner
from tests.api.rows import post, signed_in, start
from tests.api.test_doors import is_problem, rows
from tests.clerk.model import ClerkModel
from tests.support.turns import ended

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def answer(clerk: ClerkModel) -> Iterator[None]:
    """Each turn is answered and has ended before the test's tables are emptied."""
    clerk.script("Hello.")
    yield
    clerk.go_on.set()
    for run in AgentRun.objects.filter(owner__gt="").live():
        ended(run.pk)


def accepted(response: Any) -> AgentRun:
    assert response.status_code == 202, response.content
    ids = json.loads(response.content)
    assert set(ids) == {"runId", "threadId"}
    run = AgentRun.objects.get(pk=ids["runId"])
    assert str(run.thread_id) == ids["threadId"]
    return run


def test_a_message_starts_a_run_in_a_thread_of_its_own(alice: Any) -> None:
    run = accepted(post(signed_in(alice), "chat", {"message": "hi", "agent": "desk"}))
    assert (run.actor, run.agent) == (alice, "desk")
    assert ended(run.pk).status == "completed"


def test_the_next_message_continues_the_thread_with_its_agent(alice: Any) -> None:
    client = signed_in(alice)
    first = accepted(post(client, "chat", {"message": "hi", "agent": "helper"}))
    ended(first.pk)
    second = accepted(post(client, "chat", {"message": "more", "threadId": str(first.thread_id)}))
    assert (second.thread_id, second.agent) == (first.thread_id, "helper")


def test_a_message_that_names_no_agent_goes_to_one_that_the_person_may_start(alice: Any) -> None:
    assert accepted(post(signed_in(alice), "chat", {"message": "hi"})).agent == "desk"


def test_where_no_agent_may_be_started_none_is(alice: Any) -> None:
    client = signed_in(alice)
    with isolated():
        clear()
        before = rows()
        assert "agent" in is_problem(post(client, "chat", {"message": "hi"}), 400, "invalid")["errors"]
        assert rows() == before


def test_a_busy_thread_takes_no_second_message(alice: Any, clerk: ClerkModel) -> None:
    clerk.holds = True
    client = signed_in(alice)
    first = accepted(post(client, "chat", {"message": "hi", "agent": "desk"}))
    assert clerk.begun.wait(10)
    is_problem(post(client, "chat", {"message": "x", "threadId": str(first.thread_id)}), 409, "run_active")
    assert [run.pk for run in AgentRun.objects.all()] == [first.pk]
    assert [message.content for message in Message.objects.all()] == ["hi"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "message"),
        ({"message": ""}, "message"),
        ({"message": " \n\t"}, "message"),
        ({"message": None}, "message"),
        ({"message": 5}, "message"),
        ({"message": ["hi"]}, "message"),
        ({"message": {"text": "hi"}}, "message"),
        ({"message": "hi", "agent": 5}, "agent"),
        ({"message": "hi", "agent": "desk", "persona": []}, "persona"),
        ({"message": "hi", "agent": "desk", "pageContext": "x"}, "pageContext"),
        ({"message": "hi", "agent": "desk", "pageContext": {"x": "y" * 20000}}, "pageContext"),
        (
            {"message": "hi", "agent": "desk", "attachments": [{"url": "http://169.254.169.254"}]},
            "attachments",
        ),
        ({"message": "hi", "agent": "desk", "attachments": "x"}, "attachments"),
        ({"message": "hi", "agent": "desk", "regenerate": True}, "regenerate"),
    ],
)
def test_a_message_that_is_none_leaves_no_row(alice: Any, body: dict[str, Any], field: str) -> None:
    before = rows()
    problem = is_problem(post(signed_in(alice), "chat", body), 400, "invalid")
    assert field in problem["errors"]
    assert rows() == before


@pytest.mark.parametrize(
    "extra", [{"agent": "nobody"}, {"agent": "desk", "persona": "nobody"}, {"agent": "Desk"}]
)
def test_unknown_agents_and_personas_leave_no_row(alice: Any, extra: dict[str, str]) -> None:
    before = rows()
    is_problem(post(signed_in(alice), "chat", {"message": "hi", **extra}), 400, "invalid")
    assert rows() == before


def test_state_comes_from_the_server_alone(alice: Any, bob: Any) -> None:
    theirs = start(alice)
    run = accepted(
        post(
            signed_in(bob),
            "chat",
            {
                "message": "hi",
                "agent": "desk",
                "actor": "alice",
                "user": alice.pk,
                "runId": str(theirs.pk),
                "parentRunId": str(theirs.pk),
                "conversationId": str(theirs.thread_id),
                "status": "completed",
                "durable": True,
                "tenant": "x",
            },
        )
    )
    assert run.pk != theirs.pk
    assert run.thread_id != theirs.thread_id
    assert (run.actor, run.parent, run.tenant) == (bob, None, "")
    theirs.refresh_from_db()
    assert theirs.actor == alice


@pytest.mark.parametrize("text", ["a\u0000b", "\\ud83d\\ude00 \\udc00", "x\u2028\r\n"])
def test_any_text_is_taken(alice: Any, text: str) -> None:
    raw = b'{"agent": "desk", "message": "' + json.dumps(text)[1:-1].replace("\\\\", "\\").encode() + b'"}'
    response = signed_in(alice).post(
        "/agent/chat", raw, content_type="application/json", headers={"accept": "application/json"}
    )
    assert ended(accepted(response).pk).status == "completed"


def test_under_wsgi_a_stream_is_refused_before_anything_starts(alice: Any) -> None:
    before = rows()
    response = signed_in(alice).post(
        "/agent/chat",
        {"message": "hi", "agent": "desk"},
        content_type="application/json",
        headers={"accept": "text/event-stream"},
    )
    is_problem(response, 501, "stream_needs_asgi")
    run = start(alice)
    is_problem(signed_in(alice).get(f"/agent/chat/{run.pk}/stream"), 501, "stream_needs_asgi")
    assert AgentRun.objects.count() == 1
    assert rows()["agora_agent.Thread"] == before["agora_agent.Thread"] + 1


def test_a_limit_of_the_actor_is_429(alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "MAX_LIVE_RUNS_PER_ACTOR": 1}
    start(alice)
    before = rows()
    is_problem(post(signed_in(alice), "chat", {"message": "hi", "agent": "desk"}), 429, "limit_exceeded")
    assert rows() == before


def test_a_process_without_capacity_says_when_to_come_back(
    alice: Any, settings: Any, clerk: ClerkModel
) -> None:
    clerk.holds = True
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "INLINE_MAX_CONCURRENCY": 1}
    client = signed_in(alice)
    accepted(post(client, "chat", {"message": "hi", "agent": "desk"}))
    assert clerk.begun.wait(10)
    response = post(client, "chat", {"message": "hi", "agent": "desk"})
    is_problem(response, 503, "busy")
    assert int(response.headers["Retry-After"]) >= 1


def test_cancel_stops_a_run_once(alice: Any, clerk: ClerkModel) -> None:
    clerk.holds = True
    client = signed_in(alice)
    run = accepted(post(client, "chat", {"message": "hi", "agent": "desk"}))
    assert json.loads(post(client, f"chat/{run.pk}/cancel").content) == {"aborted": True}
    assert ended(run.pk).status == "cancelled"
    assert json.loads(post(client, f"chat/{run.pk}/cancel").content) == {"aborted": False}


def test_cancel_needs_no_body(alice: Any) -> None:
    run = start(alice)
    response = signed_in(alice).generic("POST", f"/agent/chat/{run.pk}/cancel/")
    assert json.loads(response.content) == {"aborted": True}


def test_who_may_cancel_anything_cancels_what_they_may_not_read(alice: Any, erin: Any) -> None:
    run = start(alice)
    client = signed_in(erin)
    assert json.loads(post(client, f"chat/{run.pk}/cancel").content) == {"aborted": True}
    run.refresh_from_db()
    assert (run.status, run.cancelled_by) == ("cancelled", f"user:{erin.pk}")
    is_problem(post(client, "chat/nonsense/cancel"), 404)
    entry = AuditEntry.objects.get(action="cancel_requested")
    assert (entry.via, entry.content) == (
        "rest",
        {"by": f"user:{erin.pk}", "auth_method": "SessionAuthentication", "address": "127.0.0.1"},
    )


def send(client: Client, key: str, body: dict[str, Any] | None = None) -> Any:
    return post(client, "chat", body or {"message": "hi", "agent": "desk"}, **{"idempotency-key": key})


def test_the_same_send_again_gives_the_same_run(alice: Any) -> None:
    client = signed_in(alice)
    first = accepted(send(client, "k1"))
    ended(first.pk)
    assert accepted(send(client, "k1")).pk == first.pk
    assert (
        accepted(post(client, "chat", {"agent": "desk", "message": "hi"}, **{"idempotency-key": "k1"}))
        == first
    )
    assert accepted(send(client, "k2")).pk != first.pk
    assert AgentRun.objects.count() == 2


def test_another_body_under_a_key_is_422(alice: Any) -> None:
    client = signed_in(alice)
    accepted(send(client, "k1"))
    is_problem(send(client, "k1", {"message": "other", "agent": "desk"}), 422, "idempotency_conflict")
    assert AgentRun.objects.count() == 1


def test_a_key_belongs_to_its_actor(alice: Any, bob: Any) -> None:
    first, second = accepted(send(signed_in(alice), "k1")), accepted(send(signed_in(bob), "k1"))
    assert first.pk != second.pk
    assert second.actor == bob


def test_a_key_of_a_refused_send_is_still_free(alice: Any) -> None:
    client = signed_in(alice)
    is_problem(send(client, "k1", {"message": ""}), 400)
    is_problem(send(client, "k1", {"message": "hi", "agent": "nobody"}), 400)
    accepted(send(client, "k1"))


def test_a_key_is_kept_for_a_day(alice: Any) -> None:
    client = signed_in(alice)
    first = accepted(send(client, "k1"))
    ended(first.pk)
    row = IdempotencyKey.objects.get()
    IdempotencyKey.objects.update(created_at=row.created_at - dt.timedelta(hours=25))
    assert accepted(send(client, "k1", {"message": "other", "agent": "desk"})).pk != first.pk
    assert IdempotencyKey.objects.count() == 1


def test_old_keys_are_pruned_a_batch_at_a_time_and_young_ones_stay(alice: Any) -> None:
    run = start(alice)
    for hours in (1, 23, 25, 30, 40):
        IdempotencyKey.objects.create(pk=f"k{hours}", body_digest="x", run=run)
        row = IdempotencyKey.objects.get(pk=f"k{hours}")
        IdempotencyKey.objects.filter(pk=row.pk).update(created_at=row.created_at - dt.timedelta(hours=hours))
    assert IdempotencyKey.prune_expired(limit=2) == 2
    assert set(IdempotencyKey.objects.values_list("pk", flat=True)) == {"k1", "k23", "k25"}
    maintain()
    assert set(IdempotencyKey.objects.values_list("pk", flat=True)) == {"k1", "k23"}
    assert IdempotencyKey.prune_expired() == 0
    assert AgentRun.objects.filter(pk=run.pk).exists()


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\tb"])
def test_a_key_that_is_none_is_refused(alice: Any, key: str) -> None:
    is_problem(send(signed_in(alice), key), 400)
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize("in_thread", [False, True])
def test_parallel_sends_with_one_key_start_one_run(alice: Any, clerk: ClerkModel, in_thread: bool) -> None:
    clerk.holds = True
    body: dict[str, Any] = {"message": "hi", "agent": "desk"}
    if in_thread:
        body["threadId"] = str(Thread.objects.create(actor=alice).pk)
    barrier = threading.Barrier(4)
    answers: list[Any] = []

    def work() -> None:
        try:
            client = signed_in(alice)
            barrier.wait(10)
            answers.append(send(client, "k1", body))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({accepted(answer).pk for answer in answers}) == 1
    assert len(answers) == 4
    assert AgentRun.objects.count() == 1


def test_a_limit_met_by_the_other_send_is_no_refusal_of_this_one(
    alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two equal sends took the last place while the second was on its way."""
    from agora_agent.api import idempotency

    client = signed_in(alice)
    first = accepted(send(client, "k1"))
    original = idempotency._Sent.find
    looked: list[Any] = []

    def find(sent: Any, using: str) -> Any:
        looked.append(sent)
        return original(sent, using) if len(looked) > 1 else None

    def full(*args: Any, **kwargs: Any) -> None:
        raise LimitExceeded

    monkeypatch.setattr(idempotency._Sent, "find", find)
    monkeypatch.setattr(type(runner.get()), "start", full)
    assert accepted(send(client, "k1")).pk == first.pk
