"""What customers, the back office and strangers can do with the shop over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.shop.harness import Answer, Frame, Shop, text_of

pytestmark = pytest.mark.processes


def parked_refund(
    shop: Shop, amount: str = "1.50", order: str = "1001"
) -> tuple[list[Frame], dict[str, Any]]:
    """A refund that waits for carol: the frames so far, and the approval frame's data."""
    frames = shop.say(
        "alice", f"Please refund {amount} EUR of order {order} because it is chipped", until=("approval",)
    )
    assert frames[-1].event == "approval", [f.event for f in frames]
    return frames, frames[-1].data


def reply(call: dict[str, Any]) -> dict[str, Any]:
    return {"runId": call["runId"], "toolCallId": call["id"], "digest": call["digest"]}


def paid(shop: Shop, call: dict[str, Any]) -> list[dict[str, Any]]:
    key = f"{call['runId']}:{call['id']}"
    return [row for row in shop.rows("refund") if row["idempotency_key"] == key]


def test_customer_finds_own_order_and_not_anothers(shop: Shop) -> None:
    own = shop.say("alice", "Where is my order 1002?")
    [result] = [f.data for f in own if f.event == "tool-result"]
    assert result["status"] == "executed"
    assert result["output"]["number"] == "1002"
    foreign = shop.say("bob", "Where is my order 1002?")
    [result] = [f.data for f in foreign if f.event == "tool-result"]
    assert result["status"] == "failed"
    assert "1002" in text_of(foreign)


def test_approved_refund_is_paid_once_and_names_its_approver(shop: Shop) -> None:
    frames, call = parked_refund(shop)
    assert call["preview"] == "Refund 1.50 EUR of order 1001 to alice because " + call["input"]["reason"]
    assert paid(shop, call) == []
    assert shop.call("carol", "/agent/tool-call/approve", reply(call)).body["status"] == "approved"
    rest = shop.follow("alice", call["runId"], frames[-1].id or 0)
    assert rest[-1].event == "done"
    [row] = paid(shop, call)
    assert (row["amount"], row["approved_by"]) == ("1.50", "carol")


def test_rejected_refund_pays_nothing_and_the_customer_is_told(shop: Shop) -> None:
    frames, call = parked_refund(shop)
    body = {"runId": call["runId"], "toolCallId": call["id"], "reason": "The photo shows no chip"}
    assert shop.call("carol", "/agent/tool-call/reject", body).body["status"] == "rejected"
    rest = shop.follow("alice", call["runId"], frames[-1].id or 0)
    [decision] = [f.data for f in rest if f.event == "decision"]
    assert decision["reason"] == "The photo shows no chip"
    assert text_of(rest)
    assert paid(shop, call) == []


def test_fifty_concurrent_approvals_pay_once(shop: Shop) -> None:
    frames, call = parked_refund(shop)

    def approve(_: int) -> Answer:
        return shop.call("carol", "/agent/tool-call/approve", reply(call))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(approve, range(50)))
    assert {answer.status for answer in answers} == {200}
    assert len({(a.body["status"], a.body["decidedBy"], a.body["decidedAt"]) for a in answers}) == 1
    assert shop.follow("alice", call["runId"], frames[-1].id or 0)[-1].event == "done"
    assert len(paid(shop, call)) == 1


def test_more_than_the_order_holds_is_refused_after_approval(shop: Shop) -> None:
    frames, call = parked_refund(shop, amount="9000.00", order="1003")
    shop.call("carol", "/agent/tool-call/approve", reply(call))
    rest = shop.follow("alice", call["runId"], frames[-1].id or 0)
    [result] = [f.data for f in rest if f.event == "tool-result"]
    assert result["status"] == "failed"
    assert "can still be refunded" in str(result["error"])
    assert paid(shop, call) == []


@pytest.mark.parametrize(
    ("user", "status"), [(None, 401), ("bob", 404)], ids=["nobody is signed in", "another customer"]
)
def test_strangers_learn_nothing_of_a_run(shop: Shop, user: str | None, status: int) -> None:
    frames, call = parked_refund(shop)
    thread = frames[0].data["threadId"]
    gets = [f"chat/{call['runId']}/stream", f"runs/{call['runId']}", f"threads/{thread}"]
    posts: list[tuple[str, dict[str, Any]]] = [
        (f"chat/{call['runId']}/cancel", {}),
        ("chat", {"message": "hello", "threadId": thread}),
        ("tool-call/approve", reply(call)),
        ("tool-call/reject", {"runId": call["runId"], "toolCallId": call["id"]}),
    ]
    assert {path: shop.call(user, f"/agent/{path}").status for path in gets} == dict.fromkeys(gets, status)
    assert {path: shop.call(user, f"/agent/{path}", body).status for path, body in posts} == {
        path: status for path, _ in posts
    }
    shop.call("alice", f"/agent/chat/{call['runId']}/cancel", {})


def test_requester_may_not_approve_own_refund(shop: Shop) -> None:
    _, call = parked_refund(shop)
    assert shop.call("alice", "/agent/tool-call/approve", reply(call)).status == 403
    assert shop.call("alice", f"/agent/chat/{call['runId']}/cancel", {}).body == {"aborted": True}
    assert shop.call("carol", "/agent/tool-call/approve", reply(call)).status == 409
    assert paid(shop, call) == []


def test_token_authentication_works(shop: Shop) -> None:
    import urllib.request

    token = shop.manage("drf_create_token", "alice").split()[2]
    request = urllib.request.Request(
        f"{shop.base}/agent/threads", headers={"Authorization": f"Token {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200
