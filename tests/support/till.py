"""An agent with a tool that marks an argument as sensitive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agora_agent import Agent, tool
from agora_agent.agents import registry
from tests.clerk.model import CLERK

SECRET = "4111-1111"


@tool(
    kind="action",
    approver="clerk.wipe",
    redact=("card",),
    preview=lambda ctx, card, amount: f"Charge {amount} to {card}.",
)
def charge(card: str, amount: int = 1) -> str:
    """Charge a card; somebody else authorises."""
    return "charged"


@contextmanager
def till() -> Iterator[None]:
    """Inside, there is such an agent."""
    with registry.isolated():
        registry.register(Agent(name="till", instructions="", tools=[charge], public=True, provider=CLERK))
        yield
