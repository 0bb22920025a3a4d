"""Fixtures that tests of turns share, whichever room they test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agora_agent.runners.resolver import get_runner
from tests.clerk import agents
from tests.clerk.model import CLERK, ClerkModel
from tests.support.people import person


@pytest.fixture
def clerk(transactional_db: None) -> Iterator[ClerkModel]:
    """The model's script, empty."""
    CLERK.reset()
    agents.OUTBOX.clear()
    agents.CALLS.clear()
    agents.BEGUN.clear()
    agents.GO_ON.clear()
    yield CLERK
    CLERK.go_on.set()
    agents.GO_ON.set()
    assert get_runner(False).runs.wait_idle(20), "an inline turn outlived its test"


@pytest.fixture
def alice(transactional_db: None) -> Any:
    """A requester."""
    return person("alice")


@pytest.fixture
def carol(transactional_db: None) -> Any:
    """Holds the permission that ``wipe`` asks for."""
    return person("carol", "clerk.wipe")


@pytest.fixture
def engine(settings: Any, transactional_db: None) -> Any:
    """The durable runner's engine; the test itself drives, with ``engine.run_due()``."""
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "DURABLE": True, "DISPATCHER": "worker"}
    from agora_agent.durable import get_engine

    return get_engine()


@pytest.fixture(params=["inline", "durable"])
def either_runner(request: pytest.FixtureRequest, settings: Any, transactional_db: None) -> Iterator[str]:
    """The test runs once under each runner, with this process doing the work."""
    settings.AGORA_AGENT = {
        **settings.AGORA_AGENT,
        "DURABLE": request.param == "durable",
        "SWEEP_SECONDS": 0.5,
    }
    if request.param == "durable":
        from agora_agent.durable import get_engine

        engine = get_engine()
        engine.serve()
        yield request.param
        engine.stop(10)
    else:
        yield request.param
