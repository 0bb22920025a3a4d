from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.db import connections
from django.test import Client
from django.utils import timezone

from agora_agent.models import AccessEntry, AuditEntry, Decision, PendingApproval, ToolCall
from agora_agent.providers.scripted import Reply
from tests.clerk import agents
from tests.support.people import person
from tests.support.turns import ended, pending, start

LIST = "/admin/agora_agent/pendingapproval/"


def card(call):
    return f"{LIST}{call.pk}/change/"


def decide(client, call, verdict, *, reason="", **form):
    data = {"digest": call.digest, "round": call.round, "reason": reason, **form}
    return client.post(f"{LIST}{call.pk}/{verdict}/", data, follow=True)


def said(response):
    return " ".join(str(message) for message in response.context["messages"])


@pytest.fixture
def call(alice, make_run, make_call):
    return make_call(make_run(alice))


# -- who sees the inbox ------------------------------------------------------------------------------------


def test_an_approver_without_model_permissions_finds_the_inbox_on_the_index(carol, browse):
    assert LIST in browse(carol).get("/admin/").content.decode()


def test_staff_who_can_decide_nothing_do_not_see_the_inbox(db, browse):
    client = browse(person("bob", is_staff=True))
    assert LIST not in client.get("/admin/").content.decode()
    assert client.get(LIST).status_code == 403


def test_a_requester_with_something_to_confirm_sees_the_inbox(alice, make_run, make_call, browse):
    client = browse(alice)
    assert client.get(LIST).status_code == 403
    make_call(make_run(alice), tier="confirm", approver="", tool_name="send_mail", input={"to": "bob"})
    assert "send_mail" in client.get(LIST).content.decode()


def test_an_inactive_approver_is_nobody(carol, call, browse):
    client = browse(carol)
    carol.is_active = False
    carol.save()
    assert client.get(LIST).status_code == 302  # to the sign-in page
    assert decide(client, call, "approve").redirect_chain[0][0].startswith("/admin/login/")
    assert not Decision.objects.exists()


def test_a_group_is_an_approver_too(alice, make_run, make_call, browse):
    group = Group.objects.create(name="keepers")
    kim = person("kim", is_staff=True)
    kim.groups.add(group)
    make_call(make_run(alice), approver="group:keepers")
    assert "keepers" in browse(kim).get(LIST).content.decode()


def test_the_list_shows_what_waits_for_me_most_urgent_first(
    alice, carol, make_run, make_call, browse, in_an_hour
):
    run = make_run(alice)
    later = make_call(run, preview="Wipe the later shelf.")
    sooner = make_call(run, preview="Wipe the sooner shelf.", expires_at=in_an_hour)
    make_call(run, preview="Nothing for carol.", approver="permission:clerk.other")
    shown = list(browse(carol).get(LIST).context["cl"].result_list)
    assert [row.pk for row in shown] == [sooner.pk, later.pk]


def test_anyones_calls_are_listed_only_for_those_who_see_all_runs(call, carol, operator, browse):
    assert not browse(operator).get(LIST).context["cl"].result_list
    assert len(browse(operator).get(f"{LIST}?whose=anyone").context["cl"].result_list) == 1
    ToolCall.objects.update(approver="permission:clerk.other")
    assert not browse(carol).get(f"{LIST}?whose=anyone").context["cl"].result_list


def test_what_has_no_preview_is_said_by_tool_and_arguments(call, carol, browse):
    assert "wipe: what = shelf 7" in browse(carol).get(LIST).content.decode()


def test_an_empty_inbox_says_what_would_fill_it(carol, browse):
    assert "Nothing waits for you" in browse(carol).get(LIST).content.decode()


# -- the card ----------------------------------------------------------------------------------------------


def test_the_card_shows_facts_arguments_preview_then_words(alice, carol, clerk, browse, transactional_db):
    clerk.script(Reply("I would wipe it now.", calls=[("wipe", {"what": "shelf 7"})]), "Done.")
    run_id = start(alice, "Please wipe shelf 7.")
    [call] = pending(run_id)
    page = browse(carol).get(card(call)).content.decode()
    order = [
        page.index(text)
        for text in (
            "Who may decide",
            '<th scope="row">what</th>',
            "Wipe shelf 7.",
            "I would wipe it now.",
            "Please wipe shelf 7.",
        )
    ]
    assert order == sorted(order)
    assert "permission “Can wipe” (clerk.wipe)" in page
    decide(browse(carol), call, "reject", reason="no")
    ended(run_id)


def test_a_card_of_somebody_else_is_not_there(db, call, browse):
    response = browse(person("bob", "clerk.other", is_staff=True)).get(card(call), follow=True)
    assert "There is nothing here" in said(response)


def test_a_strangers_attempt_to_decide_is_noted(db, call, browse):
    bob = person("bob", "clerk.other", is_staff=True)
    assert "There is nothing here" in said(decide(browse(bob), call, "approve"))
    entry = AccessEntry.objects.get()
    assert (entry.action, entry.via, entry.subject_ref) == ("decision_refused", "admin", f"call:{call.pk}")
    assert (entry.content["by"], entry.content["verdict"]) == (f"user:{bob.pk}", "approve")
    call.refresh_from_db()
    assert call.status == "pending_approval"


def test_a_foreign_read_leaves_an_access_entry(call, carol, browse):
    browse(carol).get(card(call))
    assert AccessEntry.objects.get().subject_ref == f"call:{call.pk}"


def test_markup_from_model_and_requester_is_shown_as_text(alice, carol, make_run, make_call, browse):
    attack = "</pre><img src=x onerror=alert(1)>"
    call = make_call(make_run(alice), input={attack: attack, "url": "javascript:alert(1)"}, preview=attack)
    client = browse(carol)
    for page in (client.get(LIST), client.get(card(call)), decide(client, call, "reject", reason=attack)):
        text = page.content.decode()
        assert "<img" not in text
        assert "&lt;img src=x" in text
        assert 'href="javascript:' not in text


def test_invisible_and_turning_characters_are_spelled_out(alice, carol, make_run, make_call, browse):
    call = make_call(make_run(alice), input={"what": "gpj\u202eexe\u200b\x07"}, preview="a\u2066b")
    page = browse(carol).get(card(call)).content.decode()
    assert not set("\u202e\u200b\x07\u2066") & set(page)
    for code in ("U+202E", "U+200B", "U+0007", "U+2066"):
        assert code in page


def test_the_requester_sees_an_authorise_call_but_no_buttons(alice, call, browse):
    page = browse(alice).get(card(call)).content.decode()
    assert "You asked for this yourself" in page
    assert "/agentrun/" not in page  # a page that alice may not open
    assert "/approve/" not in page


def test_a_superuser_does_not_authorise_what_they_asked_for(make_run, make_call, browse, db):
    root = person("root", is_staff=True, is_superuser=True)
    call = make_call(make_run(root))
    client = browse(root)
    assert "/approve/" not in client.get(card(call)).content.decode()
    assert "Not decided" in said(decide(client, call, "approve"))
    assert not Decision.objects.exists()


# -- deciding ----------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_approving_runs_the_effect_once_and_names_the_decider(alice, carol, clerk, browse):
    clerk.script(Reply(calls=[("wipe", {"what": "shelf 7"})]), "Done.")
    run_id = start(alice)
    [call] = pending(run_id)
    response = decide(browse(carol), call, "approve", reason="go ahead")
    assert response.redirect_chain == [(card(call), 302)]
    assert "Approved" in said(response)
    assert ended(run_id).status == "completed"
    assert [what for _key, what in agents.OUTBOX] == ["shelf 7"]
    decision = Decision.objects.get()
    assert (decision.principal, decision.via, decision.auth_method) == (carol, "admin", "session")
    assert (decision.address, decision.reason, decision.digest) == ("127.0.0.1", "go ahead", call.digest)
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.object_repr) == (
        carol,
        str(call.pk),
        f"{run_id}:{call.call_id}",
    )
    assert AuditEntry.objects.filter(chain=str(run_id), via="admin").exists()


@pytest.mark.django_db(transaction=True)
def test_rejecting_tells_the_model_why_and_runs_nothing(alice, carol, clerk, browse):
    clerk.script(Reply(calls=[("wipe", {"what": "shelf 7"})]), "Understood.")
    run_id = start(alice)
    [call] = pending(run_id)
    response = decide(browse(carol), call, "reject", reason="in use until Friday")
    assert "Rejected by carol" in response.content.decode()
    assert ended(run_id).answer == "Understood."
    assert not agents.OUTBOX
    assert "in use until Friday" in clerk.requests[-1].messages[-1]["content"]


def test_a_rejection_without_a_reason_is_asked_for_one(call, carol, browse):
    response = decide(browse(carol), call, "reject", reason="  ")
    assert response.status_code == 200
    assert "Say why" in response.content.decode()
    assert not Decision.objects.exists()


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_get_decides_nothing(call, carol, browse, verdict):
    response = browse(carol).get(f"{LIST}{call.pk}/{verdict}/?reason=x&digest={call.digest}")
    assert (response.status_code, response["Location"]) == (302, card(call))
    assert PendingApproval.objects.get(pk=call.pk).status == "pending_approval"


def test_a_post_without_the_token_decides_nothing(call, carol, browse):
    response = decide(browse(carol, enforce_csrf_checks=True), call, "approve")
    assert response.status_code == 403
    assert not Decision.objects.exists()


def test_anonymous_visitors_are_sent_to_sign_in(call):
    assert decide(Client(), call, "approve").redirect_chain[0][0].startswith("/admin/login/")
    assert not Decision.objects.exists()


@pytest.mark.parametrize(
    "form", [{"digest": "0" * 64}, {"digest": ""}, {"round": "2"}, {"round": ""}, {"round": "x"}]
)
def test_a_page_that_shows_something_else_decides_nothing(call, carol, browse, form):
    assert "has changed" in said(decide(browse(carol), call, "approve", **form))
    assert not Decision.objects.exists()


def test_extra_fields_do_not_change_what_runs(call, carol, browse):
    decide(browse(carol), call, "approve", input='{"what": "everything"}', actor="bob", tool_name="x")
    assert ToolCall.objects.get().input == {"what": "shelf 7"}


def test_the_second_of_two_is_told_who_decided(call, carol, browse):
    dan = person("dan", "clerk.wipe", is_staff=True)
    decide(browse(carol), call, "reject", reason="no")
    response = decide(browse(dan), call, "approve")
    assert response.status_code == 200
    assert "Already decided: Rejected by carol" in said(response)
    assert Decision.objects.get().principal == carol
    assert LogEntry.objects.count() == 1


def test_saying_the_same_again_changes_nothing(call, carol, browse):
    client = browse(carol)
    decide(client, call, "approve")
    assert "You had said so already" in said(decide(client, call, "approve"))
    assert (Decision.objects.count(), LogEntry.objects.count()) == (1, 1)


def test_an_overdue_call_expires_instead(alice, carol, make_run, make_call, browse):
    call = make_call(make_run(alice), expires_at=timezone.now() - dt.timedelta(seconds=1))
    client = browse(carol)
    assert "The time to decide is over" in client.get(card(call)).content.decode()
    assert "The time to decide is over" in said(decide(client, call, "approve"))
    assert ToolCall.objects.get().status == "expired"


def test_a_call_of_an_ended_run_is_told_so(alice, carol, make_run, make_call, browse):
    run = make_run(alice)
    call = make_call(run)
    type(run).objects.update(status="cancelled", phase="ended")
    assert "The run has ended" in said(decide(browse(carol), call, "approve"))


def test_the_link_of_a_decided_call_shows_the_outcome(call, carol, browse):
    client = browse(carol)
    decide(client, call, "reject", reason="no need")
    page = client.get(card(call))
    assert page.status_code == 200
    assert "Rejected by carol" in page.content.decode()
    assert "/approve/" not in page.content.decode()


def test_nobody_decides_in_somebody_elses_name(call, carol, browse):
    client = browse(carol)
    session = client.session
    session["hijack_history"] = [str(person("root", is_superuser=True).pk)]
    session.save()
    assert "Not decided" in said(decide(client, call, "approve"))
    assert not Decision.objects.exists()


def test_a_holder_of_decide_any_may_only_refuse_what_the_requester_confirms(
    alice, make_run, make_call, browse
):
    ann = person("ann", "agora_agent.decide_any_toolcall", is_staff=True)
    call = make_call(make_run(alice), tier="confirm", approver="")
    client = browse(ann)
    page = client.get(card(call)).content.decode()
    assert ("/approve/" in page, "/reject/" in page) == (False, True)
    decide(client, call, "reject", reason="not today")
    assert Decision.objects.get().principal == ann


@pytest.mark.django_db(transaction=True)
def test_many_who_decide_at_once_give_one_decision(alice, make_run, make_call, browse):
    call = make_call(make_run(alice))
    people = [person(f"p{number}", "clerk.wipe", is_staff=True) for number in range(6)]
    clients = [browse(one) for one in people]

    def go(pair):
        try:
            return decide(pair[1], call, "approve" if pair[0] % 2 else "reject", reason="now").status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(go, enumerate(clients))) == {200}
    assert Decision.objects.filter(is_outcome=True).count() == 1
    assert LogEntry.objects.count() == 1


def test_nothing_is_added_changed_or_deleted_here(call, carol, browse):
    client = browse(carol)
    assert client.post(card(call), {"status": "approved"}).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{call.pk}/delete/", {"post": "yes"}).status_code in {302, 403, 404}
    client.post(LIST, {"action": "delete_selected", "_selected_action": [str(call.pk)], "post": "yes"})
    assert ToolCall.objects.get().status == "pending_approval"
