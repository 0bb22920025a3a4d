"""alice asks, bob is anybody, carol authorises, dave reads everything, erin cancels anything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.people import person
from tests.turn.conftest import clerk

__all__ = ["clerk"]


@pytest.fixture
def alice(db: None) -> Any:
    return person("alice")


@pytest.fixture
def bob(db: None) -> Any:
    return person("bob")


@pytest.fixture
def carol(db: None) -> Any:
    return person("carol", "clerk.wipe")


@pytest.fixture
def dave(db: None) -> Any:
    return person("dave", "agora_agent.view_all_runs")


@pytest.fixture
def erin(db: None) -> Any:
    return person("erin", "agora_agent.cancel_any_run")
