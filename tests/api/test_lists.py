"""Lists and details: what they say, in which order, in how many queries."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from agora_agent.db import database_now
from agora_agent.models import AgentRun, Message, Thread, Usage
from tests.api.rows import get, park, post, signed_in, start
from tests.api.test_doors import is_problem
from tests.support.people import person


def read(client: Any, path: str) -> Any:
    response = get(client, path)
    assert response.status_code == 200, response.content
    return json.loads(response.content)


def pages(client: Any, path: str, key: str) -> list[str]:
    """One member of all rows, page after page."""
    found, cursor, sign = [], "", "&" if "?" in path else "?"
    while True:
        page = read(client, path + (f"{sign}cursor={cursor}" if cursor else ""))
        assert set(page) == {"results", "next"}
        found += [row[key] for row in page["results"]]
        cursor = page["next"]
        if cursor is None:
            return found


def test_runs_come_newest_first_each_once_whatever_the_clock_says(alice: Any, bob: Any) -> None:
    made = [start(alice) for _ in range(7)]
    start(bob)
    AgentRun.objects.filter(pk__in=[run.pk for run in made[2:5]]).update(created_at=made[3].created_at)
    expected = [str(run.pk) for run in AgentRun.objects.filter(actor=alice).order_by("-created_at", "-id")]
    for limit in (1, 2, 3, 50):
        assert pages(signed_in(alice), f"runs?limit={limit}", "runId") == expected


def test_rows_that_arrive_meanwhile_neither_repeat_nor_hide_others(alice: Any) -> None:
    made = [start(alice) for _ in range(4)]
    client = signed_in(alice)
    first = read(client, "runs?limit=2")
    start(alice)
    rest = read(client, f"runs?limit=50&cursor={first['next']}")
    assert [row["runId"] for row in first["results"] + rest["results"]] == [
        str(run.pk) for run in reversed(made)
    ]


@pytest.fixture
def without_zones(settings: Any, alice: Any) -> Any:
    """A project whose columns hold times without a zone."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"
    return signed_in(alice)


def test_without_zones_lists_have_pages_too(without_zones: Any, alice: Any, carol: Any) -> None:
    runs = [start(alice) for _ in range(3)]
    for run in runs:
        park(run, "wipe")
    newest_first = [str(run.pk) for run in reversed(runs)]
    assert pages(without_zones, "runs?limit=1", "runId") == newest_first
    threads = [str(thread.pk) for thread in Thread.objects.order_by("-updated_at", "-id")]
    assert pages(without_zones, "threads?limit=1", "threadId") == threads
    assert pages(signed_in(carol), "approvals?limit=2", "runId") == newest_first[::-1]


def test_without_zones_a_time_is_the_same_moment(without_zones: Any, alice: Any) -> None:
    run = start(alice)
    created = database_now("default")
    AgentRun.objects.filter(pk=run.pk).update(created_at=created)
    [row] = read(without_zones, "runs")["results"]
    told = dt.datetime.fromisoformat(row["createdAt"])
    assert abs(dt.datetime.now(dt.UTC) - told) < dt.timedelta(minutes=1)
    earlier, later = (told + dt.timedelta(seconds=seconds) for seconds in (-1, 1))
    tokyo = dt.timezone(dt.timedelta(hours=9))
    for moment, found in (
        (earlier, 1),
        (later, 0),
        (earlier.astimezone(tokyo), 1),
        (later.astimezone(tokyo), 0),
    ):
        assert len(read(without_zones, f"runs?{urlencode({'from': moment.isoformat()})}")["results"]) == found
        assert (
            len(read(without_zones, f"runs?{urlencode({'to': moment.isoformat()})}")["results"]) == 1 - found
        )
    assert len(read(without_zones, "runs?from=2024-01-01")["results"]) == 1
    assert len(read(without_zones, "runs?to=2024-01-01")["results"]) == 0


def test_without_zones_a_decision_says_when(without_zones: Any, alice: Any) -> None:
    call = park(start(alice))
    body = {"runId": str(call.run_id), "toolCallId": call.call_id}
    answer = json.loads(post(without_zones, "tool-call/approve", body).content)
    told = dt.datetime.fromisoformat(answer["decidedAt"])
    assert abs(dt.datetime.now(dt.UTC) - told) < dt.timedelta(minutes=1)
    [detail] = read(without_zones, f"runs/{call.run_id}")["toolCalls"]
    assert detail["decidedAt"] == answer["decidedAt"]


def test_a_cursor_of_other_settings_is_none_of_ours(alice: Any, settings: Any) -> None:
    for _ in range(2):
        start(alice)
    client = signed_in(alice)
    cursor = read(client, "runs?limit=1")["next"]
    settings.USE_TZ = False
    is_problem(get(client, f"runs?cursor={cursor}"), 400)


@pytest.mark.parametrize(
    "query",
    [
        "cursor=x",
        "cursor=%00",
        "cursor=W10",
        "cursor=WyJ4IiwieCJd",
        "cursor=WyI5OTk5LTEyLTMxVDIzOjU5OjU5LTE0OjAwIiwgIngiXQ",
        "limit=0",
        "limit=x",
        "limit=-1",
        "limit=99999999999",
        "limit=%C2%B2",
        "status=nonsense",
        "thread=x",
        "from=yesterday",
        "to=9999-12-31T23:59:59-14:00",
        "from=2026-02-30",
    ],
)
def test_a_query_that_is_none_is_400(alice: Any, query: str) -> None:
    is_problem(get(signed_in(alice), f"runs?{query}"), 400, "invalid")


def test_runs_are_filtered(alice: Any) -> None:
    client = signed_in(alice)
    done = start(alice, status="completed", phase="ended", agent="helper")
    live = start(alice, thread=Thread.objects.create(actor=alice))
    ids = {"done": str(done.pk), "live": str(live.pk)}

    def found(query: str) -> set[str]:
        return set(pages(client, f"runs?{query}", "runId"))

    assert found("status=completed") == {ids["done"]}
    assert found("status=running") == {ids["live"]}
    assert found("agent=helper") == {ids["done"]}
    assert found("agent=%00") == set()
    assert found(f"thread={live.thread_id}") == {ids["live"]}
    moment = live.created_at.isoformat().replace("+", "%2B")
    assert found(f"from={moment}") == {ids["live"]}
    assert found(f"to={moment}") == {ids["done"]}
    assert found("from=2000-01-01&to=2000-01-02") == set()


def test_a_run_says_what_it_waits_for(alice: Any) -> None:
    run = start(alice, phase="waiting", started_at=timezone.now(), steps=2, model="m")
    call = park(run, "wipe")
    child = start(alice, parent=run)
    park(run, "send_mail", "c2", kind="agent", status="executing", tier="", child_run_id=child.pk)
    park(run, "send_mail", "c3", status="interrupted")
    park(run, "send_mail", "c4", status="executed", output={"n": Decimal("1.50")}, executed_at=timezone.now())
    data = read(signed_in(alice), f"runs/{run.pk}")
    waits = data.pop("waitingOn")
    assert [(wait["kind"], wait["toolCallId"]) for wait in waits] == [
        ("approval", "c1"),
        ("child", "c2"),
        ("operator", "c3"),
    ]
    assert waits[0]["approver"] == "permission:clerk.wipe"
    assert waits[1]["runId"] == str(child.pk)
    assert (data["status"], data["phase"], data["agent"], data["steps"]) == ("running", "waiting", "desk", 2)
    assert data["actor"] == {"id": str(alice.pk), "name": "alice"}
    assert (data["error"], data["costUsd"], data["finishedAt"], data["parentRunId"]) == (
        None,
        None,
        None,
        None,
    )
    assert data["startedAt"].endswith("Z")
    assert [row["toolCallId"] for row in data["toolCalls"]] == ["c1", "c2", "c3", "c4"]
    shown = data["toolCalls"][0]
    assert shown["digest"] == call.digest
    assert (shown["input"], shown["status"], shown["round"]) == ({"what": "x"}, "pending_approval", 1)
    assert data["toolCalls"][3]["output"] == {"n": "1.50"}
    [told] = data["children"]
    assert (told["runId"], told["parentRunId"]) == (str(child.pk), str(run.pk))
    assert "journal" not in data


def test_a_failed_run_says_a_fixed_sentence(alice: Any, settings: Any) -> None:
    run = start(
        alice, status="failed", phase="ended", error_code="model_failed", error_detail="SENTINEL-sk-1"
    )
    client = signed_in(alice)
    data = read(client, f"runs/{run.pk}")
    assert data["error"]["code"] == "model_failed"
    assert "SENTINEL" not in json.dumps(data)
    assert (data["phase"], data["waitingOn"]) == (None, [])
    settings.DEBUG = True
    assert "SENTINEL" in read(client, f"runs/{run.pk}")["error"]["message"]


def test_what_is_unknown_is_never_told_as_nothing(alice: Any) -> None:
    known, partly, unused = start(alice), start(alice), start(alice)
    for run, costs in ((known, ["0.10", "0.05"]), (partly, ["0.10", None])):
        for step, cost in enumerate(costs):
            Usage.objects.create(
                run=run,
                step=step,
                attempt=1,
                state="reported",
                input_tokens=10,
                output_tokens=2 if cost else None,
                cost_usd=cost and Decimal(cost),
            )
    client = signed_in(alice)
    told = read(client, f"runs/{known.pk}")
    assert Decimal(told["costUsd"]) == Decimal("0.15")
    assert told["usage"]["inputTokens"] == 20
    assert read(client, f"runs/{partly.pk}")["costUsd"] is None
    told = read(client, f"runs/{unused.pk}")
    assert (told["costUsd"], told["usage"]["inputTokens"]) == (None, None)


def test_the_journal_is_for_those_who_may_see_payloads(alice: Any, db: None) -> None:
    from agora_agent.durable.models import Journal

    run = start(alice)
    Journal.objects.create(
        run_id=run.pk, pos="0", name="llm:0", kind="task", payload='{"text":"hi"}', epoch=1, token="t"
    )
    reader = person("olga", "agora_agent.view_all_runs", "agora_agent.view_run_payload")
    [entry] = read(signed_in(reader), f"runs/{run.pk}")["journal"]
    assert (entry["name"], entry["payload"]) == ("llm:0", {"text": "hi"})
    assert "journal" not in read(signed_in(alice), f"runs/{run.pk}")


def test_a_list_of_runs_costs_the_same_however_long_it_is(alice: Any, django_assert_num_queries: Any) -> None:
    client = signed_in(alice)

    def queries_for(count: int) -> int:
        for _ in range(count):
            park(start(alice, phase="waiting"))
        with django_assert_num_queries(7):
            read(client, "runs")
        return count

    queries_for(2)
    queries_for(10)


def test_a_detail_costs_the_same_however_much_there_is(
    alice: Any, django_assert_max_num_queries: Any
) -> None:
    run = start(alice)
    for number in range(10):
        park(run, call_id=f"c{number}", decided_by=alice)
        start(alice, parent=run)
    client = signed_in(alice)
    with django_assert_max_num_queries(11):
        assert len(read(client, f"runs/{run.pk}")["children"]) == 10


def test_what_waits_for_me_comes_oldest_first(
    alice: Any, carol: Any, django_assert_max_num_queries: Any
) -> None:
    mine = park(start(alice, phase="waiting"), call_id="mine")
    theirs = [
        park(start(alice, phase="waiting"), "wipe", f"w{number}", preview="Wipe x.") for number in range(5)
    ]
    assert pages(signed_in(alice), "approvals", "toolCallId") == [mine.call_id]
    client = signed_in(carol)
    assert pages(client, "approvals?limit=2", "toolCallId") == [call.call_id for call in theirs]
    with django_assert_max_num_queries(14):
        row = read(client, "approvals")["results"][0]
    assert row["requester"] == {"id": str(alice.pk), "name": "alice"}
    assert (row["tier"], row["preview"], row["agent"]) == ("authorise", "Wipe x.", "desk")
    assert row["threadId"] == str(theirs[0].run.thread_id)
    assert row["age"] >= 0
    assert row["digest"] == theirs[0].digest


def test_threads_are_listed_made_and_searched(alice: Any, bob: Any) -> None:
    client = signed_in(alice)
    made = json.loads(post(client, "threads", {"title": "Refunds", "agent": "desk"}).content)
    assert (made["title"], made["agent"], made["activeRunId"]) == ("Refunds", "desk", None)
    assert json.loads(post(client, "threads").content)["title"] == ""
    Thread.objects.create(actor=bob, title="Refunds of bob")
    assert len(pages(client, "threads?limit=1", "threadId")) == 2
    assert pages(client, "threads?search=refund", "threadId") == [made["threadId"]]
    assert pages(client, "threads?search=%00", "threadId") == []
    assert pages(client, "threads?search=%25", "threadId") == []
    for wrong, field in (
        ({"title": "x" * 201}, "title"),
        ({"title": 5}, "title"),
        ({"agent": "nobody"}, "agent"),
        ({"agent": "desk", "persona": "nobody"}, "persona"),
    ):
        assert field in is_problem(post(client, "threads", wrong), 400)["errors"]


def test_a_thread_has_its_messages_in_order_not_by_the_clock(alice: Any) -> None:
    thread = Thread.objects.create(actor=alice, title="t", last_seq=3)
    now = timezone.now()
    for seq in (2, 3, 1):
        Message.objects.create(
            thread=thread,
            seq=seq,
            role="user" if seq % 2 else "assistant",
            content=str(seq),
            created_at=now,
            tool_calls=[{"id": "c1", "name": "read_stock", "input": {"n": 2**60}}] if seq == 2 else [],
            tool_results=[{"id": "c1", "name": "read_stock", "status": "executed", "output": 4}]
            if seq == 2
            else [],
        )
    data = read(signed_in(alice), f"threads/{thread.pk}")
    assert [message["content"] for message in data["messages"]] == ["1", "2", "3"]
    assert data["messages"][1]["toolCalls"][0]["input"] == {"n": str(2**60)}
    assert data["messages"][1]["toolResults"][0]["output"] == 4
    assert data["before"] is None
    earlier = read(signed_in(alice), f"threads/{thread.pk}?before=3")
    assert [message["seq"] for message in earlier["messages"]] == [1, 2]
    is_problem(get(signed_in(alice), f"threads/{thread.pk}?before=x"), 400)


def test_a_long_thread_is_read_in_parts(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agora_agent.api.views.threads.MESSAGES", 2)
    thread = Thread.objects.create(actor=alice)
    for seq in range(1, 6):
        Message.objects.create(thread=thread, seq=seq, role="user", content=str(seq))
    client, before, seen = signed_in(alice), "", []
    while before is not None:
        data = read(client, f"threads/{thread.pk}?before={before}")
        seen = [message["seq"] for message in data["messages"]] + seen
        before = data["before"]
    assert seen == [1, 2, 3, 4, 5]


def test_a_deleted_thread_is_not_there(alice: Any) -> None:
    thread = Thread.objects.create(actor=alice, deleted_at=timezone.now())
    is_problem(get(signed_in(alice), f"threads/{thread.pk}"), 404)
    assert read(signed_in(alice), "threads")["results"] == []


def test_everybodys_runs_are_listed_for_those_who_may_see_them(alice: Any, dave: Any) -> None:
    run = start(alice)
    assert pages(signed_in(dave), "runs", "runId") == []
    assert pages(signed_in(dave), "runs?scope=all", "runId") == [str(run.pk)]
    own = start(dave)
    assert pages(signed_in(alice), "runs?scope=all", "runId") == [str(run.pk)]
    assert set(pages(signed_in(dave), "runs?scope=all", "runId")) == {str(run.pk), str(own.pk)}


@pytest.mark.parametrize("durable", [False, True])
def test_health_says_what_runs_here(alice: Any, settings: Any, durable: bool) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "DURABLE": durable}
    start(alice, phase="waiting")
    data = read(signed_in(alice), "health")
    assert data["runner"] == ("durable" if durable else "inline")
    assert (data["durable"], data["durableAsked"], data["durableReason"]) == (durable, durable, None)
    assert data["parked"] == 1
    assert "oldestReadySeconds" in data
    assert data["dispatcher"] == ("thread" if durable else None)


def test_health_says_that_what_is_required_cannot_be(alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "DURABLE": "required"}
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "agora_agent.durable"]
    data = read(signed_in(alice), "health")
    assert (data["runner"], data["durable"], data["durableAsked"]) == (None, False, True)
    assert "not in INSTALLED_APPS" in data["durableReason"]
    assert (data["dispatcher"], data["oldestReadySeconds"]) == (None, None)
