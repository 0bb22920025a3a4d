"""The pytest plugin: fixtures for tests of agents. Loads in any project: Django is imported when a fixture is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agora_agent.testing.scripted import Script, ScriptedModel
    from agora_agent.testing.server import FakeOpenAI


@pytest.fixture
def fake_openai() -> Iterator[FakeOpenAI]:
    """A running model server on 127.0.0.1: give it turns, point ``OPENAI_BASE_URL`` at its ``base_url``.

    At the end the test fails if the server had to refuse a prompt.
    """
    from agora_agent.providers import background
    from agora_agent.testing.server import FakeOpenAI

    with FakeOpenAI() as server:
        yield server
    background.shutdown()
    assert not server.violations, f"the model server refused: {server.violations}"


@pytest.fixture
def scripted_model() -> Callable[..., ScriptedModel]:
    """Makes a model that answers by a script, at once: ``scripted_model(lambda request: Reply("hi"))``."""
    from agora_agent.testing.scripted import ScriptedModel

    def make(script: Script | None = None) -> ScriptedModel:
        return ScriptedModel(script)

    return make
