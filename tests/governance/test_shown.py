"""One answer to what a reader sees of a call, for every door."""

from __future__ import annotations

from typing import Any

import pytest

from agora_agent.agents import registry
from agora_agent.agents.agent import Agent
from agora_agent.agents.tool import tool
from agora_agent.governance import shown as module
from agora_agent.governance.shown import MARK, Reader, shown, shown_frame
from tests.governance.rows import RELEASE, grant, park, start

pytestmark = pytest.mark.django_db

CARD = {"card": "4111", "to": "a"}


@tool(kind="action", approver=RELEASE, redact=("card",))
def charge(card: str, to: str = "") -> str:
    """Charge a card; somebody else authorises."""
    return to


@tool(kind="action", redact=("card",))
def refund(card: str, to: str = "") -> str:
    """Pay back; whoever chats confirms."""
    return to


@pytest.fixture(autouse=True)
def sensitive(counter: Agent) -> None:
    registry.clear()
    registry.register(Agent("counter", "Help.", tools=[*counter.tools, charge, refund], public=True))


def sees(user: Any, call: Any) -> bool:
    """True if all of it is shown; else only what is not marked."""
    seen = shown(call, Reader(user))
    if seen.hidden:
        assert (seen.input, seen.preview, seen.digest) == ({"card": MARK, "to": "a"}, "", "")
        return False
    assert (seen.input, seen.preview, seen.digest) == (CARD, "Charge 4111.", call.digest)
    return True


def waiting(people: Any, name: str = "charge", **fields: Any) -> Any:
    return park(start(people.alice), name, input=CARD, preview="Charge 4111.", **fields)


def test_the_requester_the_deciders_and_holders_of_the_permission_see_it_all(people: Any) -> None:
    grant(people.bob, "agora_agent.view_run_payload")
    seeing = {"alice", "bob", "carol", "felix", "root"}
    call = waiting(people)
    assert {name for name in vars(people) if sees(getattr(people, name), call)} == seeing


def test_where_the_requester_decides_only_who_may_refuse_sees_it_too(people: Any) -> None:
    call = waiting(people, "refund")
    assert {name for name in vars(people) if sees(getattr(people, name), call)} == {"alice", "felix", "root"}


def test_a_call_that_nobody_is_asked_about_is_nobodys_to_see(people: Any) -> None:
    call = waiting(people, "refund", tier="", status="executed")
    assert {name for name in vars(people) if sees(getattr(people, name), call)} == {"alice", "root"}


def test_who_settles_an_unknown_outcome_must_know_what_it_was(people: Any) -> None:
    assert not sees(people.gina, waiting(people))
    assert sees(people.gina, waiting(people, status="interrupted"))
    assert not sees(people.dave, waiting(people, status="interrupted"))


def test_the_requester_of_one_run_is_anybody_in_another(people: Any) -> None:
    mine, other = waiting(people), park(start(people.bob), "charge", input=CARD, preview="Charge 4111.")
    reader = Reader(people.alice)
    assert not shown(mine, reader).hidden
    assert shown(other, reader).hidden


def test_an_approver_who_also_asked_sees_only_their_own(people: Any) -> None:
    """What is remembered of one call is not taken for another's answer."""
    own = park(start(people.carol), "charge", input=CARD, preview="Charge 4111.")
    asked = park(
        start(people.bob, requesters=[f"user:{people.carol.pk}"]),
        "charge",
        input=CARD,
        preview="Charge 4111.",
    )
    reader = Reader(people.carol)
    assert not shown(own, reader).hidden
    assert shown(asked, reader).hidden
    assert not shown(waiting(people), reader).hidden


def test_nothing_is_hidden_where_nothing_is_marked(people: Any) -> None:
    call = park(start(people.alice), "note", preview="Note a.")
    assert shown(call, Reader(people.dave)) == (call.input, "Note a.", call.digest, False)
    assert shown(park(start(people.alice), "charge", input={}), Reader(people.dave)).hidden is False


def test_a_name_that_the_tool_does_not_have_may_hold_anything(people: Any) -> None:
    call = park(start(people.alice), "charge", input={"Card": "4111", "to": "a"})
    assert shown(call, Reader(people.dave)).input == {"Card": MARK, "to": "a"}
    call.input = ["4111"]
    assert shown(call, Reader(people.dave)).input == MARK


@pytest.mark.parametrize("why", ["agent", "tool", "raises"])
def test_what_nobody_can_tell_is_hidden_whole(people: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = park(start(people.alice), "note", input={"to": "a", "n": 1}, preview="Note a.")
    if why == "agent":
        registry.clear()
    elif why == "tool":
        registry.clear()
        registry.register(Agent("counter", "Help.", tools=[charge], public=True))
    else:
        monkeypatch.setattr(module, "find_tool", lambda *args: 1 / 0)
    seen = shown(call, Reader(people.dave))
    assert seen == ({"to": MARK, "n": MARK}, "", "", True)
    assert not shown(call, Reader(people.alice)).hidden
    frame = {"toolName": "note", "input": {"to": "a"}, "id": "c1", "preview": "Note a.", "digest": "d"}
    assert shown_frame("approval", frame) == {"toolName": "note", "input": {"to": MARK}, "id": "c1"}


def test_a_frame_is_shown_as_the_strictest_tool_of_its_name_would_be() -> None:
    @tool(name="charge", redact=("to",))
    def elsewhere(card: str, to: str = "") -> str:
        """Something else."""
        return to

    registry.register(Agent("cellar", "Help.", tools=[elsewhere], public=True))
    frame = {"toolName": "charge", "input": dict(CARD)}
    assert shown_frame("tool-call", frame)["input"] == {"card": MARK, "to": MARK}
    assert frame["input"] == CARD  # other readers get the same object


@pytest.mark.parametrize("event", ["", "decision", "tool-result", "step", "component"])
def test_other_frames_are_left_alone(event: str) -> None:
    frame = {"toolName": "charge", "input": CARD}
    assert shown_frame(event, frame) is frame


def test_a_frame_whose_input_was_too_large_for_it_stays_as_it_is() -> None:
    frame = {"toolName": "charge", "input": None, "truncated": ["input"]}
    assert shown_frame("tool-call", frame) == frame
