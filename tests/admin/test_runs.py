from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from agora_agent.exceptions import ConfigurationError
from agora_agent.models import AccessEntry, AgentRun, AuditEntry, Message, ToolCall, Usage
from agora_agent.providers.scripted import Reply
from tests.support.people import person
from tests.support.turns import ended, pending, start

LIST = "/admin/agora_agent/agentrun/"


def detail(run):
    return f"{LIST}{run.pk}/change/"


def said(response):
    return " ".join(str(message) for message in response.context["messages"])


def text(client, url):
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


# -- who sees what -----------------------------------------------------------------------------------------


def test_staff_without_a_permission_do_not_see_runs(db, alice, make_run, browse):
    client = browse(person("bob", is_staff=True))
    assert client.get(LIST).status_code == 403
    assert "There is nothing here" in said(client.get(detail(make_run(alice)), follow=True))


def test_view_permission_alone_shows_own_runs_only(alice, make_run, browse):
    vera = person("vera", "agora_agent.view_agentrun", is_staff=True)
    make_run(alice)
    own = make_run(vera)
    assert [run.pk for run in browse(vera).get(LIST).context["cl"].result_list] == [own.pk]


def test_reading_somebody_elses_run_leaves_an_access_entry(alice, operator, make_run, browse):
    run = make_run(alice)
    text(browse(operator), detail(run))
    entry = AccessEntry.objects.get()
    assert (entry.action, entry.subject_ref, entry.via) == ("run", f"run:{run.pk}", "admin")


def test_nothing_is_added_changed_or_deleted_here(alice, operator, make_run, browse):
    run, client = make_run(alice), browse(operator)
    assert client.post(detail(run), {"status": "completed"}).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{run.pk}/delete/", {"post": "yes"}).status_code == 403
    client.post(LIST, {"action": "delete_selected", "_selected_action": [str(run.pk)], "post": "yes"})
    assert AgentRun.objects.get().status == "running"


# -- the list ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "call", "words"),
    [
        ({}, {}, "Waiting for approval of wipe by somebody who “Can wipe”"),
        ({}, {"status": "interrupted"}, "Waiting for a person: the outcome of wipe is unknown"),
        ({}, {"status": "pending_answers", "kind": "ask"}, "Waiting for answers from alice"),
        ({}, {"tier": "confirm", "approver": ""}, "Waiting for approval of wipe by the requester, alice"),
        ({"phase": "queued"}, None, "Waiting for a free worker"),
        ({"phase": "executing", "steps": 2}, None, "Working on step 3"),
        ({"cancel_requested_at": timezone.now()}, {}, "Stopping: a cancel was asked for"),
        ({"status": "completed", "phase": "ended"}, None, "Done"),
        (
            {"status": "failed", "phase": "ended", "error_code": "replay_diverged"},
            None,
            "no longer matches the run",
        ),
        ({"status": "cancelled", "phase": "ended"}, None, "Cancelled"),
    ],
)
def test_the_list_says_in_words_what_a_run_waits_for(
    alice, operator, make_run, make_call, browse, run, call, words
):
    row = make_run(alice, **run)
    if call is not None:
        make_call(row, **call)
    assert words in text(browse(operator), LIST)
    assert words in text(browse(operator), detail(row))


@pytest.mark.parametrize("length", [8, 13, 36])
def test_a_run_is_found_by_the_beginning_of_its_id(alice, operator, make_run, browse, length):
    wanted = make_run(alice, id="11111111-2222-4333-8444-555555555555")
    make_run(alice, id="99999999-2222-4333-8444-555555555555")
    found = browse(operator).get(LIST, {"q": str(wanted.pk)[:length]}).context["cl"].result_list
    assert [run.pk for run in found] == [wanted.pk]


def test_a_run_is_found_by_thread_and_by_requester(alice, operator, make_run, browse):
    wanted, client = make_run(alice), browse(operator)
    make_run(operator)
    for term in (str(wanted.thread_id), "alice"):
        assert [run.pk for run in client.get(LIST, {"q": term}).context["cl"].result_list] == [wanted.pk]
    assert not client.get(LIST, {"q": "' OR 1=1 --"}).context["cl"].result_list


def test_filters_narrow_the_list(alice, operator, make_run, browse):
    make_run(alice)
    make_run(alice, status="failed", phase="ended", durable=True, agent="helper")
    client = browse(operator)
    for query in ({"status__exact": "failed"}, {"agent": "helper"}, {"durable__exact": "1"}):
        found = client.get(LIST, query).context["cl"].result_list
        assert [run.status for run in found] == ["failed"]


def _queries(client, url):
    client.get(url)
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert client.get(url).status_code == 200
    return seen.captured_queries


def _many(people, make_run, make_call, number):
    for index in range(number):
        owner = people[index % len(people)]
        run = make_run(owner)
        for _ in range(3):
            make_run(owner, thread=run.thread, parent=run, root_id=run.pk, depth=1)
        for _ in range(3):
            make_call(run)


@pytest.mark.parametrize(
    "page", ["agentrun", "thread", "pendingapproval", "usage", "auditentry", "accessentry"]
)
def test_lists_ask_as_much_for_many_rows_as_for_one(page, make_run, make_call, browse, db):
    root = person("root", is_staff=True, is_superuser=True)
    people = [person(f"p{index}") for index in range(5)]
    client, url = browse(root), f"/admin/agora_agent/{page}/?whose=anyone" * (page == "pendingapproval")
    url = url or f"/admin/agora_agent/{page}/"
    _many(people, make_run, make_call, 1)
    Usage.objects.create(run=AgentRun.objects.first(), step=0, attempt=1)
    few = len(_queries(client, url))
    _many(people, make_run, make_call, 10)
    for attempt in range(2, 12):
        Usage.objects.create(run=AgentRun.objects.first(), step=0, attempt=attempt)
    assert len(_queries(client, url)) == few
    assert few < 20


def test_the_list_counts_no_whole_table_and_loads_no_payload(alice, operator, make_run, make_call, browse):
    make_call(make_run(alice, answer="x" * 1000))
    queries = [query["sql"] for query in _queries(browse(operator), LIST)]
    for sql in queries:
        assert "COUNT(" not in sql or "LIMIT" in sql
    rows = next(sql for sql in queries if "agora_agent_agentrun" in sql and "ORDER BY" in sql)
    for column in ("answer", "error_detail", "requesters", "input"):
        assert f'agentrun"."{column}' not in rows.replace("`", '"')


def test_a_detail_page_asks_as_much_for_many_rows_as_for_few(alice, operator, make_run, make_call, browse):
    few, many = make_run(alice), make_run(alice)
    for run, number in ((few, 1), (many, 12)):
        for index in range(number):
            make_call(run)
            make_run(alice, thread=run.thread, parent=run, root_id=run.pk, depth=1)
            run.thread.messages.create(seq=index, role="user", content="hello", run_id=run.pk)
    client = browse(operator)
    assert len(_queries(client, detail(few))) == len(_queries(client, detail(many)))


# -- the detail page ---------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_detail_shows_calls_who_decided_messages_and_usage(alice, operator, clerk, browse):
    clerk.script(Reply("Looking.", calls=[("read_stock", {"sku": "kettle"})]), "Four kettles.")
    run = ended(start(alice, "How many kettles?"))
    page = text(browse(operator), detail(run))
    for shown in (
        "How many kettles?",
        "Looking.",
        "Four kettles.",
        "read_stock",
        "nobody is asked",
        "kettle",
        "executed",
    ):
        assert shown in page
    assert f"/admin/agora_agent/thread/{run.thread_id}/change/" in page
    assert "UTC" in page


def test_the_detail_links_waiting_calls_and_children(alice, operator, make_run, make_call, browse):
    run = make_run(alice)
    child = make_run(alice, thread=run.thread, parent=run, root_id=run.pk, depth=1, agent="helper")
    call = make_call(run)
    page = text(browse(operator), detail(run))
    assert f"/admin/agora_agent/pendingapproval/{call.pk}/change/" in page
    assert detail(child) in page
    assert detail(run) in text(browse(operator), detail(child))


def test_markup_in_anything_that_was_stored_is_shown_as_text(alice, operator, make_run, make_call, browse):
    attack = "</pre><img src=x onerror=alert(1)>"
    run = make_run(
        alice,
        agent=attack,
        status="failed",
        phase="ended",
        error_code=attack[:32],
        error_detail=attack,
        model=attack,
    )
    make_call(run, status="failed", input={"a": attack}, output={"b": attack}, error=attack, reason=attack)
    Message.objects.create(thread=run.thread, seq=1, role="user", content=attack, run_id=run.pk)
    run.thread.title = attack
    run.thread.save()
    client = browse(operator)
    for url in (
        LIST,
        detail(run),
        f"/admin/agora_agent/thread/{run.thread_id}/change/",
        "/admin/agora_agent/thread/",
    ):
        page = text(client, url)
        assert "<img src=x" not in page
        assert "&lt;img" in page


def test_a_megabyte_of_output_is_shortened(alice, operator, make_run, make_call, browse):
    run = make_run(alice)
    make_call(run, status="executed", output="x" * 1_000_000)
    page = text(browse(operator), detail(run))
    assert len(page) < 200_000
    assert "1,000,000 characters" in page


def test_what_went_wrong_inside_is_for_operators(alice, operator, make_run, browse):
    run = make_run(
        alice, status="failed", phase="ended", error_code="model_failed", error_detail="sk-123 leaked"
    )
    reader = person("rita", "agora_agent.view_all_runs", is_staff=True)
    assert "sk-123" not in text(browse(reader), detail(run))
    assert "sk-123" in text(browse(operator), detail(run))


@pytest.fixture
def journal(alice, make_run):
    engine = apps.get_app_config("agora_durable")
    run = make_run(alice, durable=True)
    engine.get_model("Run").objects.create(
        id=run.pk, workflow="agent.run", root_id=run.pk, status="suspended"
    )
    rows = [
        engine.get_model("Journal")(
            run_id=run.pk,
            pos=f"{n:06d}",
            name=f"step:{n}",
            kind="step",
            payload='{"secret":1}',
            epoch=1,
            token=str(n),
        )
        for n in range(1, 71)
    ]
    engine.get_model("Journal").objects.bulk_create(rows)
    return run


def test_the_journal_is_in_order_in_pages_and_only_for_holders_of_the_payload_permission(
    journal, operator, browse
):
    client = browse(operator)
    first, second = text(client, detail(journal)), text(client, f"{detail(journal)}?journal=2")
    assert first.index("step:2<") < first.index("step:10<") < first.index("step:50<")
    assert "step:51<" not in first
    assert "step:51<" in second
    assert "step:70<" in second
    reader = person("rita", "agora_agent.view_all_runs", is_staff=True)
    assert "step:1<" not in text(browse(reader), detail(journal))


def test_a_page_that_does_not_exist_is_the_nearest_one(journal, operator, browse):
    assert "step:70<" in text(browse(operator), f"{detail(journal)}?journal=99")
    assert "step:1<" in text(browse(operator), f"{detail(journal)}?journal=-1")


def test_unknown_costs_are_unknown_and_known_ones_exact(alice, operator, make_run, browse):
    run = make_run(alice)
    Usage.objects.create(run=run, step=0, attempt=1, input_tokens=7)
    Usage.objects.create(run=run, step=1, attempt=1, cost_usd=Decimal("0.000231"))
    page = text(browse(operator), detail(run))
    assert "unknown" in page
    assert "0.000231<" in page


# -- durable asked for, and off ----------------------------------------------------------------------------


def test_a_note_says_that_durable_runs_are_off(alice, operator, make_run, browse, settings):
    run, client = make_run(alice), browse(operator)
    assert "are off" not in text(client, LIST)
    without = [app for app in settings.INSTALLED_APPS if app != "agora_agent.durable"]
    for wanted in (True, "required"):
        with override_settings(
            INSTALLED_APPS=without, AGORA_AGENT={**settings.AGORA_AGENT, "DURABLE": wanted}
        ):
            for url in (LIST, detail(run)):
                assert "Durable runs were asked for, but are off" in text(client, url)


# -- cancel ------------------------------------------------------------------------------------------------


def cancel(client, run, **data):
    return client.post(f"{LIST}{run.pk}/cancel/", data, follow=True)


@pytest.mark.django_db(transaction=True)
def test_cancelling_asks_first_then_ends_the_run(alice, carol, operator, clerk, browse):
    clerk.script(Reply(calls=[("wipe", {"what": "shelf"})]), "Done.")
    run_id = start(alice)
    [call] = pending(run_id)
    run, client = AgentRun.objects.get(pk=run_id), browse(operator)
    page = text(client, f"{LIST}{run_id}/cancel/")
    assert "1 waiting call is settled as cancelled" in page
    assert AgentRun.objects.get(pk=run_id).cancel_requested_at is None
    assert "is cancelled" in said(cancel(client, run))
    assert ended(run_id).status == "cancelled"
    assert ToolCall.objects.get(pk=call.pk).status == "cancelled"
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (operator, str(run_id))
    assert "olga" in text(client, detail(run))
    asked = AuditEntry.objects.get(action="cancel_requested")
    assert (asked.via, asked.content["by"]) == ("admin", f"user:{operator.pk}")
    assert (asked.content["auth_method"], asked.content["address"]) == ("session", "127.0.0.1")


def test_a_cancel_that_fails_says_so_and_the_log_says_why(
    alice, operator, make_run, browse, caplog, settings
):
    run = make_run(alice, durable=True)
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "agora_agent.durable"]
    assert "see the server's log" in said(cancel(browse(operator), run)).replace("&#x27;", "'")
    [record] = [record for record in caplog.records if record.name == "agora_agent.admin"]
    assert record.exc_info[0] is ConfigurationError
    assert record.run_id == str(run.pk)


def test_an_ended_run_stays_as_it_is(alice, operator, make_run, browse):
    run = make_run(alice, status="completed", phase="ended")
    assert "had ended already" in said(cancel(browse(operator), run))
    assert "had ended already" in said(browse(operator).get(f"{LIST}{run.pk}/cancel/", follow=True))
    assert not LogEntry.objects.exists()


def test_only_the_requester_and_holders_of_the_permission_cancel(alice, make_run, browse):
    run = make_run(alice)
    reader = person("rita", "agora_agent.view_all_runs", is_staff=True)
    client = browse(reader)
    assert client.get(f"{LIST}{run.pk}/cancel/").status_code == 403
    assert cancel(client, run).status_code == 403
    assert "/cancel/" not in text(client, detail(run))
    stranger = browse(person("bob", "agora_agent.cancel_any_run", is_staff=True))
    assert "There is nothing here" in said(cancel(stranger, run))
    assert AgentRun.objects.get().cancel_requested_at is None
    cancel(browse(alice), run)
    assert AgentRun.objects.get().cancel_requested_at is not None


def test_a_cancel_without_the_token_changes_nothing(alice, operator, make_run, browse):
    run = make_run(alice)
    assert cancel(browse(operator, enforce_csrf_checks=True), run).status_code == 403
    assert AgentRun.objects.get().cancel_requested_at is None


def test_a_selection_is_cancelled_one_by_one_with_a_count_for_each_outcome(alice, make_run, browse):
    vic = person("vic", "agora_agent.view_all_runs", is_staff=True)
    mine, other, over = make_run(vic), make_run(alice), make_run(vic, status="failed", phase="ended")
    client = browse(vic)
    form = {"action": "cancel_selected", "_selected_action": [str(run.pk) for run in (mine, other, over)]}
    page = client.post(LIST, form)
    assert page.status_code == 200
    assert "Cancel these runs" in page.content.decode()
    assert not AgentRun.objects.exclude(cancel_requested_at=None).exists()
    response = client.post(LIST, {**form, "confirmed": "1"}, follow=True)
    assert said(response) == "1 run cancelled, 1 had already ended, 1 is not yours to cancel."
    assert LogEntry.objects.count() == 1
    assert AgentRun.objects.get(pk=other.pk).cancel_requested_at is None


def test_an_action_that_is_not_offered_does_nothing(alice, operator, make_run, browse):
    run = make_run(alice)
    browse(operator).post(
        LIST, {"action": "approve_selected", "_selected_action": [str(run.pk)], "confirmed": "1"}
    )
    assert AgentRun.objects.get().cancel_requested_at is None


def test_times_are_local_with_the_exact_utc_beside(alice, operator, make_run, browse, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    run = make_run(alice)
    AgentRun.objects.filter(pk=run.pk).update(created_at=dt.datetime(2026, 3, 1, 20, 0, 5, tzinfo=dt.UTC))
    page = text(browse(operator), detail(run))
    assert 'title="2026-03-01 20:00:05.000000 UTC">March 2, 2026, 5 a.m.' in page


def test_no_page_needs_inline_code(alice, operator, make_run, make_call, browse):
    import re

    call = make_call(make_run(alice))
    root = browse(person("root", is_staff=True, is_superuser=True))
    pages = [
        LIST,
        detail(call.run),
        f"{LIST}{call.run_id}/cancel/",
        "/admin/agora_agent/pendingapproval/?whose=anyone",
        f"/admin/agora_agent/pendingapproval/{call.pk}/change/",
        "/admin/agora_agent/thread/",
        f"/admin/agora_agent/thread/{call.run.thread_id}/change/",
        "/admin/agora_agent/auditentry/",
        "/admin/agora_agent/usage/",
    ]
    for url in pages:
        page = text(root, url)
        assert "<style" not in page, url
        assert not re.search(r"\son\w+=|\sstyle=", page), url
        assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>\s*\S", page), url


@pytest.mark.parametrize("query", ["status=%00", "agent=%00", "status__exact=%00", "q=%00"])
def test_a_nul_in_a_filter_is_no_fault(operator, browse, query):
    answer = browse(operator).get(f"/admin/agora_agent/agentrun/?{query}")
    assert answer.status_code == 302
