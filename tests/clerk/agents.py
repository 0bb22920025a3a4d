"""A back office in which everything that a turn can do is done by something small."""

from __future__ import annotations

import threading
from typing import Any

from agora_agent import Agent, ToolContext, ToolError, register, tool
from tests.clerk import model

OUTBOX: list[tuple[str, str]] = []
CALLS: list[tuple[str, dict[str, Any]]] = []
#: Two reads that each wait for the other's start.
MEETING = threading.Barrier(2)
#: Set by a test that wants ``slow_read`` to go on; the event that says it has begun.
BEGUN, GO_ON = threading.Event(), threading.Event()


@tool
def read_stock(sku: str = "any") -> dict[str, Any]:
    """How many of a thing there are."""
    CALLS.append(("read_stock", {"sku": sku}))
    return {"qty": 4, "sku": sku}


@tool
def meet(name: str) -> str:
    """Return once the other call of the step has begun too."""
    MEETING.wait(timeout=10)
    return name


@tool
def slow_read(ctx: ToolContext) -> str:
    """Take as long as the test wants."""
    BEGUN.set()
    while not GO_ON.wait(0.02):
        if ctx.abort_signal.aborted:
            break
    return "read"


@tool
def broken(message: str = "") -> str:
    """Fail."""
    raise RuntimeError(message)


@tool
def refuses() -> str:
    """Fail with words for the model."""
    raise ToolError("there is no such shelf")


@tool
def odd(kind: str) -> Any:
    """Return something that JSON has no word for."""
    return {"nan": float("nan"), "bytes": b"x", "set": {1, 2}, "object": object(), "none": None, "empty": ""}[
        kind
    ]


@tool(kind="action")
def send_mail(ctx: ToolContext, to: str) -> dict[str, str]:
    """Send a mail; the person confirms."""
    OUTBOX.append((ctx.idempotency_key, to))
    return {"sent": to}


@tool(kind="action", approver="clerk.wipe", preview=lambda ctx, what: f"Wipe {what}.")
def wipe(ctx: ToolContext, what: str) -> str:
    """Wipe something; somebody else authorises."""
    OUTBOX.append((ctx.idempotency_key, what))
    return "wiped"


register(
    Agent(
        name="desk",
        instructions="Be brief.",
        tools=[read_stock, meet, slow_read, broken, refuses, odd, send_mail, wipe],
        delegates=["helper"],
        public=True,
        provider=model.CLERK,
    ),
    Agent(
        name="helper",
        description="Helps the desk.",
        instructions="Help.",
        tools=[read_stock, send_mail],
        delegates=["desk"],
        public=True,
        provider=model.CLERK,
    ),
)
