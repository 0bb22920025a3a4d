"""Arguments that a tool marks with ``redact``, on every page that shows a call."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agora_agent.governance.shown import MARK
from agora_agent.models import Message
from tests.support.people import person
from tests.support.till import SECRET, till

INBOX = "/admin/agora_agent/pendingapproval/"
ALL = "agora_agent.view_all_runs"


@pytest.fixture
def make_charge(alice, make_run, make_call):
    """Calls of a tool that marks an argument, each in a run of its own."""

    def make(**fields):
        run = make_run(alice, agent="till")
        given = {"card": SECRET, "amount": 5}
        call = make_call(run, **{"tool_name": "charge", "input": given, **fields})
        asked = [{"id": call.call_id, "name": "charge", "input": given}]
        Message.objects.create(thread=run.thread, run_id=run.pk, seq=1, role="assistant", tool_calls=asked)
        return call

    with till():
        yield make


def pages(call):
    return [
        f"{INBOX}?whose=anyone",
        f"{INBOX}{call.pk}/change/",
        f"/admin/agora_agent/agentrun/{call.run_id}/change/",
        f"/admin/agora_agent/thread/{call.run.thread_id}/change/",
        f"{INBOX}",
    ]


@pytest.mark.parametrize("preview", ["", f"Charge 5 to {SECRET}."])
def test_another_reader_finds_it_on_no_page(make_charge, browse, preview):
    call = make_charge(preview=preview)
    client = browse(person("rita", ALL, "agora_agent.view_pendingapproval", is_staff=True))
    texts = [client.get(url).content.decode() for url in pages(call)]
    assert not any(SECRET in text for text in texts)
    assert f"charge: amount = 5, card = {MARK}" in texts[0]
    for text in texts[1:3]:
        assert "are hidden from you" in text
        assert MARK in text


@pytest.mark.parametrize(
    "permission", ["agora_agent.view_run_payload", "clerk.wipe", "agora_agent.decide_any_toolcall"]
)
def test_who_may_see_payloads_or_decide_finds_it(make_charge, browse, permission):
    call = make_charge(preview=f"Charge 5 to {SECRET}.")
    client = browse(person("rita", ALL, permission, is_staff=True))
    for url in pages(call)[:3]:
        text = client.get(url).content.decode()
        assert SECRET in text
        assert "are hidden from you" not in text


def test_the_requester_sees_their_own(make_charge, alice, browse):
    call = make_charge()
    assert SECRET in browse(alice).get(pages(call)[1]).content.decode()
    alice.user_permissions.add(Permission.objects.get(codename="view_pendingapproval"))
    assert SECRET in browse(alice).get(f"{INBOX}?whose=asked").content.decode()


@pytest.mark.parametrize("permissions", [[ALL], [ALL, "clerk.wipe"]])
def test_many_rows_cost_as_many_queries_as_one(make_charge, browse, permissions):
    client = browse(person("rita", *permissions, "agora_agent.view_pendingapproval", is_staff=True))

    def cost():
        client.get(f"{INBOX}?whose=anyone")
        with CaptureQueriesContext(connection) as captured:
            text = client.get(f"{INBOX}?whose=anyone").content.decode()
        return len(captured), len(re.findall("charge: amount", text))

    make_charge()
    few, one = cost()
    for _ in range(6):
        make_charge()
    assert (one, cost()) == (1, (few, 7))
