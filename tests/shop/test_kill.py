"""kill -9 of everything around a refund: it happens at most once, and nobody guesses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.shop.harness import Frame, Shop, text_of

pytestmark = pytest.mark.processes


def wait_for(look: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value of ``look``, which asks a server that has no way to call back."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.1)
    return found


def the_call(shop: Shop, run_id: str, name: str = "refund_order") -> dict[str, Any]:
    calls: list[dict[str, Any]] = shop.call("alice", f"/agent/runs/{run_id}").body["toolCalls"]
    return next(call for call in calls if call["toolName"] == name)


def park(shop: Shop) -> tuple[list[Frame], dict[str, Any]]:
    frames = shop.say(
        "alice", "Please refund 12.50 EUR of order 1001 because it is chipped", until=("approval",)
    )
    return frames, frames[-1].data


def reply(call: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"runId": call["runId"], "toolCallId": call["id"], **more}


@pytest.mark.parametrize(
    ("delay", "paid"),
    [("SHOP_DELAY_BEFORE_EFFECT", 0), ("SHOP_DELAY_AFTER_EFFECT", 1)],
    ids=["before", "after"],
)
def test_killed_inside_the_refund_a_person_settles_what_nobody_knows(
    own_shop: Shop, delay: str, paid: int
) -> None:
    own_shop.environment[delay] = "120"
    own_shop.start()
    frames, call = park(own_shop)
    run_id = call["runId"]
    assert (
        own_shop.call("carol", "/agent/tool-call/approve", reply(call, digest=call["digest"])).status == 200
    )
    wait_for(lambda: the_call(own_shop, run_id)["status"] == "executing", "the launch")
    wait_for(lambda: len(own_shop.rows("refund")) == paid, "the effect")
    own_shop.kill()

    del own_shop.environment[delay]
    own_shop.start()
    wait_for(lambda: the_call(own_shop, run_id)["status"] == "interrupted", "the interruption is known")
    run = own_shop.call("alice", f"/agent/runs/{run_id}").body
    assert (run["status"], run["phase"]) == ("running", "waiting")
    assert len(own_shop.rows("refund")) == paid

    settled = reply(call, outcome="done" if paid else "failed", reason="Looked at the bank account")
    assert own_shop.call("alice", "/agent/tool-call/settle", settled).status == 403
    assert own_shop.call("carol", "/agent/tool-call/settle", settled).status == 200
    rest = own_shop.follow("alice", run_id, frames[-1].id or 0)
    assert rest[-1].event == "done"
    numbers = [frame.id for frame in [*frames, *rest] if frame.id is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(own_shop.rows("refund")) == paid


def test_killed_during_a_model_call_the_answer_comes_once(own_shop: Shop) -> None:
    own_shop.start()
    # Long enough to be killed in the middle of: the offline model's greeting, word by word.
    with own_shop.open(
        "alice", "/agent/chat", {"message": "hello", "agent": "support"}, "text/event-stream"
    ) as r:
        from tests.shop.harness import read_frames

        seen: list[Frame] = []
        for frame in read_frames(r):
            seen.append(frame)
            if not frame.event:
                break
    own_shop.kill()
    own_shop.start()
    run_id = seen[0].data["runId"]
    rest = own_shop.follow("alice", run_id, seen[-1].id or 0)
    assert rest[-1].event == "done"
    everything = own_shop.follow("alice", run_id, 0)
    assert [f for f in everything if f.id is not None] == [f for f in [*seen, *rest] if f.id is not None]
    numbers = [frame.id for frame in everything if frame.id is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    [rewind] = [frame for frame in everything if frame.event == "rewind"]
    kept = [f for f in everything if f.id is not None and not rewind.data["after"] < f.id < (rewind.id or 0)]
    messages = own_shop.call("alice", f"/agent/threads/{seen[0].data['threadId']}").body["messages"]
    [answer] = [message["content"] for message in messages if message["role"] == "assistant"]
    assert text_of(kept) == answer
