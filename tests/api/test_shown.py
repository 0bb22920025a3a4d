"""Arguments that a tool marks with ``redact``, over HTTP: who sees them, in which answer, and who does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agora_agent.governance.decisions import decide
from agora_agent.governance.shown import MARK
from agora_agent.ids import new_id
from agora_agent.models import Message, ToolCall
from agora_agent.providers.scripted import Reply
from tests.api.rows import end, get, signed_in, start, write
from tests.api.test_streams import Reading, opened, read_all, server
from tests.clerk.model import ClerkModel
from tests.support.people import person, principal
from tests.support.till import SECRET, till
from tests.support.turns import ended, pending, until
from tests.support.turns import start as send

__all__ = ["server"]

pytestmark = pytest.mark.django_db(transaction=True)

ALL = "agora_agent.view_all_runs"
PAYLOAD = "agora_agent.view_run_payload"


@pytest.fixture
def parked(alice: Any, carol: Any, clerk: ClerkModel) -> Iterator[ToolCall]:
    """A call whose card number is nobody else's business."""
    clerk.script(Reply("Now.", calls=[("charge", {"card": SECRET, "amount": 5})]), "Charged.")
    with till():
        run_id = send(alice, agent="till")
        [call] = pending(run_id)
        yield call
        call.refresh_from_db()
        if call.status == "pending_approval":
            decide(principal(carol), call_id=call.call_id, run_id=run_id, verdict="reject")
        ended(run_id)


def answers(user: Any, call: ToolCall) -> dict[str, Any]:
    client = signed_in(user)
    paths = {"run": f"runs/{call.run_id}", "thread": f"threads/{call.run.thread_id}", "inbox": "approvals"}
    return {name: get(client, path) for name, path in paths.items()}


def test_another_reader_sees_that_there_is_something_and_not_what(parked: ToolCall) -> None:
    auditor = person("otto", ALL)
    found = answers(auditor, parked)
    assert {answer.status_code for answer in found.values()} == {200}
    for answer in found.values():
        assert SECRET.encode() not in answer.content
        assert parked.digest.encode() not in answer.content  # it could be found by trying
    [call] = json.loads(found["run"].content)["toolCalls"]
    assert (call["input"], call["digest"]) == ({"card": MARK, "amount": 5}, None)
    [asked] = json.loads(found["thread"].content)["messages"][1]["toolCalls"]
    assert asked["input"] == {"card": MARK, "amount": 5}
    assert json.loads(found["inbox"].content)["results"] == []


@pytest.mark.parametrize("permission", [PAYLOAD, "clerk.wipe", "agora_agent.decide_any_toolcall"])
def test_who_may_see_payloads_or_decide_sees_it_all(parked: ToolCall, permission: str) -> None:
    found = answers(person("otto", ALL, permission), parked)
    [call] = json.loads(found["run"].content)["toolCalls"]
    assert (call["input"], call["digest"]) == ({"card": SECRET, "amount": 5}, parked.digest)
    [asked] = json.loads(found["thread"].content)["messages"][1]["toolCalls"]
    assert asked["input"] == {"card": SECRET, "amount": 5}
    assert MARK not in found["inbox"].content.decode()


def test_requester_and_approver_see_what_they_ask_and_decide(
    parked: ToolCall, alice: Any, carol: Any
) -> None:
    found = answers(alice, parked)
    assert json.loads(found["run"].content)["toolCalls"][0]["input"]["card"] == SECRET
    assert SECRET in json.dumps(json.loads(found["thread"].content)["messages"])
    [row] = json.loads(get(signed_in(carol), "approvals").content)["results"]
    assert (row["input"]["card"], row["preview"]) == (SECRET, f"Charge 5 to {SECRET}.")
    assert row["digest"] == parked.digest


def test_many_calls_cost_as_many_queries_as_one(alice: Any) -> None:
    run = start(alice, agent="till")
    otto = person("otto", ALL)
    client = signed_in(otto)

    def add(number: int) -> None:
        asked = [{"id": f"c{number}-{n}", "name": "charge", "input": {"card": SECRET}} for n in range(5)]
        for item in asked:
            ToolCall.objects.create(
                run=run,
                call_id=item["id"],
                tool_name="charge",
                kind="action",
                status="executed",
                tier="authorise",
                approver="permission:clerk.wipe",
                input=item["input"],
            )
        Message.objects.create(
            thread=run.thread, run_id=run.pk, seq=number, role="assistant", tool_calls=asked
        )

    def cost(path: str) -> int:
        get(client, path)
        with CaptureQueriesContext(connection) as captured:
            assert SECRET not in get(client, path).content.decode()
        return len(captured)

    with till():
        add(1)
        paths = (f"runs/{run.pk}", f"threads/{run.thread_id}")
        few = [cost(path) for path in paths]
        for number in range(2, 6):
            add(number)
        assert [cost(path) for path in paths] == few


def frames_of(url: str, user: Any, call: ToolCall) -> dict[str, Any]:
    with opened(url, user, f"chat/{call.run_id}/stream") as response:
        reading, found = Reading(response), {}
        while "approval" not in found:
            event = reading.next()
            found[event.event] = event.data
        return found


def test_frames_of_a_foreign_stream_hide_it_too(
    server: str, parked: ToolCall, alice: Any, carol: Any
) -> None:
    whole = frames_of(server, alice, parked)
    assert whole["tool-call"]["input"] == whole["approval"]["input"] == {"card": SECRET, "amount": 5}
    assert SECRET in whole["approval"]["preview"]
    assert frames_of(server, person("paula", ALL, PAYLOAD), parked) == whole
    less = frames_of(server, person("otto", ALL), parked)
    assert less["tool-call"] == whole["tool-call"] | {"input": {"card": MARK, "amount": 5}}
    kept = {key: value for key, value in whole["approval"].items() if key not in ("preview", "digest")}
    assert less["approval"] == kept | {"input": {"card": MARK, "amount": 5}}
    decide(principal(carol), call_id=parked.call_id, run_id=parked.run_id, verdict="approve", reason="ok")
    ended(parked.run_id)
    own, foreign = (
        {event.event: event for event in read_all(server, user, f"chat/{parked.run_id}/stream")}
        for user in (alice, person("quinn", ALL))
    )
    for name in ("decision", "tool-result", "done"):
        assert (foreign[name].data, foreign[name].id) == (own[name].data, own[name].id)
    assert [event.id for event in foreign.values()] == [event.id for event in own.values()]


def test_a_right_that_is_lost_hides_what_comes_next(server: str, alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "STREAM_KEEPALIVE_SECONDS": 0.2}
    run, paula = start(alice, agent="till"), person("paula", ALL, PAYLOAD)

    def announce() -> None:
        frame = {
            "runId": str(run.pk),
            "id": str(new_id()),
            "toolName": "charge",
            "kind": "action",
            "input": {"card": SECRET},
        }
        write(run.pk, ("tool-call", frame))

    with till(), opened(server, paula, f"chat/{run.pk}/stream") as response:
        reading = Reading(response)
        assert reading.next().event == "meta"
        announce()
        assert reading.next().data["input"] == {"card": SECRET}
        paula.user_permissions.filter(codename=PAYLOAD.split(".")[1]).delete()

        def hidden() -> bool:
            announce()
            return bool(reading.next().data["input"] == {"card": MARK})

        until(hidden, "the right to be missed")
        end(run.pk)
        reading.rest()
