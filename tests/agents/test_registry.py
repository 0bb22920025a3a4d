"""Finding what apps declare, whatever one of them does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agora_agent.agents import registry
from agora_agent.agents.agent import Agent, Persona
from agora_agent.agents.tool import tool
from agora_agent.exceptions import ConfigurationError


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    with registry.isolated():
        registry.clear()
        yield


@tool
def look() -> str:
    """Look."""
    return ""


@tool(kind="action")
def act() -> str:
    """Act."""
    return ""


def test_registered_agent_is_found_by_exactly_its_name() -> None:
    clerk = Agent("clerk", "")
    registry.register(clerk)
    registry.register(clerk)
    assert registry.get_agent("clerk") is clerk
    assert registry.get_agent("Clerk") is None
    assert registry.agents() == {"clerk": clerk}


def test_second_agent_of_a_name_is_refused_and_nothing_of_that_call_is_kept() -> None:
    registry.register(first := Agent("clerk", ""))
    with pytest.raises(ConfigurationError, match=r"clerk.*tests\.agents\.test_registry"):
        registry.register(Agent("other", ""), Agent("clerk", ""))
    assert registry.agents() == {"clerk": first}


def test_offered_are_tools_delegates_and_questions_within_the_persona() -> None:
    careful = Persona("careful", tools=("look", "logistics"))
    clerk = Agent(
        "clerk", "", tools=[look, act], delegates=["logistics", "nobody"], ask=True, personas=[careful]
    )
    registry.register(clerk, Agent("logistics", "", description="Knows where parcels are."))
    offered = {item.name: item for item in registry.offered_tools(clerk)}
    assert list(offered) == ["look", "act", "logistics", "ask"]
    assert offered["logistics"].kind == "agent"
    assert offered["logistics"].description == "Knows where parcels are."
    assert offered["logistics"].validate({"task": "find P-77"}) == {"task": "find P-77"}
    assert offered["ask"].kind == "ask"
    assert [item.name for item in registry.offered_tools(clerk, careful)] == ["look", "logistics"]
    assert [item.name for item in registry.offered_tools(clerk, "careful")] == ["look", "logistics"]


def test_unknown_persona_offers_nothing_and_an_empty_list_is_nothing() -> None:
    clerk = Agent("clerk", "", tools=[look], personas=[Persona("mute", tools=())])
    assert registry.offered_tools(clerk, "unheard_of") == []
    assert registry.offered_tools(clerk, "mute") == []
    assert registry.offered_tools(clerk, "") == [look]


@pytest.mark.parametrize("name", ["Look", "look ", "lok", "", "act"])
def test_near_match_is_no_match(name: str) -> None:
    clerk = Agent("clerk", "", tools=[look, act], personas=[Persona("careful", tools=("look",))])
    assert registry.find_tool(clerk, name, "careful") is None
    assert registry.find_tool(clerk, "look", "careful") is look


def test_problems_name_delegates_that_do_not_exist_or_say_nothing() -> None:
    registry.register(Agent("clerk", "", delegates=["nobody", "silent"]), Agent("silent", ""))
    assert list(registry.problems()) == [
        "Agent 'clerk' delegates to 'nobody', which does not exist.",
        "Agent 'silent' needs a description: 'clerk' delegates to it by that.",
    ]


def test_isolation_undoes_what_happened_inside() -> None:
    registry.register(Agent("outer", ""))
    with registry.isolated():
        registry.register(Agent("inner", ""))
        assert set(registry.agents()) == {"outer", "inner"}
    assert set(registry.agents()) == {"outer"}


@pytest.fixture
def apps_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Four apps: the second cannot be imported, the third takes a name that is taken, the fourth has no agents."""
    header = "from agora_agent import Agent, register\n"
    modules = {
        "app_first": header + "register(Agent('first', ''))\n",
        "app_broken": "import app_last.agents\n"
        + header
        + "register(Agent('half', ''))\nimport no_such_module_anywhere\n",
        "app_twice": header + "register(Agent('first', ''))\n",
        "app_last": header + "register(Agent('last', ''))\n",
        "app_none": "",
    }
    for name, code in modules.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        if code:
            (tmp_path / name / "agents.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in modules:
            del sys.modules[name]


def test_broken_module_is_named_and_stops_nobody_else(
    apps_on_disk: Path, settings: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    settings.INSTALLED_APPS = ["app_first", "app_broken", "app_twice", "app_last", "app_none"]  # type: ignore[attr-defined]
    with caplog.at_level(logging.ERROR, "agora_agent.agents"):
        registry.autodiscover()
    assert set(registry.agents()) == {"first", "last"}, "half a module's agents are none"
    broken = registry.broken_modules()
    assert set(broken) == {"app_broken.agents", "app_twice.agents"}
    assert "no_such_module_anywhere" in broken["app_broken.agents"]
    assert "already registered by app_first.agents" in broken["app_twice.agents"]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "app_broken.agents" in caplog.text
    assert any("app_broken.agents" in problem for problem in registry.problems())


def test_module_name_is_a_setting(apps_on_disk: Path, settings: pytest.FixtureRequest) -> None:
    (apps_on_disk / "app_none" / "robots.py").write_text(
        "from agora_agent import Agent, register\nregister(Agent('robot', ''))\n"
    )
    settings.AGORA_AGENT = {"AGENTS_MODULE": "robots"}  # type: ignore[attr-defined]
    settings.INSTALLED_APPS = ["app_first", "app_none"]  # type: ignore[attr-defined]
    registry.autodiscover()
    assert set(registry.agents()) == {"robot"}
