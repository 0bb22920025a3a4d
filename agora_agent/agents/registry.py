"""The agents of this process: declared by apps, found by name."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from agora_agent.agents.agent import Agent, Persona
from agora_agent.agents.builtin import ask, delegate_tool
from agora_agent.agents.tool import Tool
from agora_agent.conf import agora_settings
from agora_agent.exceptions import ConfigurationError

logger = logging.getLogger("agora_agent.agents")


@dataclass
class _State:
    agents: dict[str, Agent] = field(default_factory=dict)
    #: Which module registered an agent.
    modules: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


_lock = threading.RLock()
_state = _State()


def register(*declared: Agent) -> None:
    """Make agents known to this process.

    Raises:
        ConfigurationError: another agent has the name.
    """
    module = sys._getframe(1).f_globals.get("__name__", "")
    with _lock:
        for agent in declared:
            if not isinstance(agent, Agent):
                raise ConfigurationError(f"{agent!r} is not an Agent.")
            known = _state.agents.get(agent.name)
            if known is not None and known is not agent:
                by = _state.modules.get(agent.name) or "another module"
                raise ConfigurationError(f"Agent {agent.name!r} is already registered by {by}.")
        for agent in declared:
            _state.agents[agent.name] = agent
            _state.modules.setdefault(agent.name, module)


def get_agent(name: str) -> Agent | None:
    """The agent of exactly this name."""
    return _state.agents.get(name)


def agents() -> dict[str, Agent]:
    """All agents by name."""
    with _lock:
        return dict(_state.agents)


def offered_tools(agent: Agent, persona: Persona | str | None = None) -> list[Tool]:
    """What the model is offered: the agent's tools, its delegates and questions, as far as the persona allows.

    A persona's name that the agent does not have allows nothing.
    """
    offered = list(agent.tools)
    for name in agent.delegates:
        other = get_agent(name)
        if other is not None:
            offered.append(delegate_tool(name, other.description))
    if agent.ask:
        offered.append(ask)
    if isinstance(persona, str):
        persona = agent.persona(persona) or (Persona(name="none", tools=()) if persona else None)
    if persona is None or persona.tools is None:
        return offered
    return [item for item in offered if item.name in persona.tools]


def find_tool(agent: Agent, name: str, persona: Persona | str | None = None) -> Tool | None:
    """The offered tool of exactly this name: a near match is no match."""
    return next((item for item in offered_tools(agent, persona) if item.name == name), None)


def autodiscover() -> None:
    """Import the module that declares agents, of each installed app that has one.

    A module that cannot be imported is logged and kept in :func:`broken_modules`; the others are imported
    nevertheless.
    """
    for config in apps.get_app_configs():
        name = f"{config.name}.{agora_settings.AGENTS_MODULE}"
        if config.module is None or not module_has_submodule(config.module, agora_settings.AGENTS_MODULE):
            continue
        _import(name)


def _import(name: str) -> None:
    try:
        import_module(name)
    except Exception as error:
        logger.exception("Agents module %s cannot be imported: its agents do not exist", name)
        with _lock:
            _state.broken[name] = f"{type(error).__name__}: {error}"
            for agent in [key for key, module in _state.modules.items() if module == name]:
                del _state.agents[agent], _state.modules[agent]
    else:
        with _lock:
            _state.broken.pop(name, None)


def broken_modules() -> dict[str, str]:
    """Modules that could not be imported, and why."""
    with _lock:
        return dict(_state.broken)


def problems() -> Iterator[str]:
    """What is wrong with the declared agents, one sentence each."""
    for module, why in broken_modules().items():
        yield f"Agents module {module} cannot be imported: {why}"
    known = agents()
    for agent in known.values():
        for name in agent.delegates:
            if name not in known:
                yield f"Agent {agent.name!r} delegates to {name!r}, which does not exist."
            elif not known[name].description:
                yield f"Agent {name!r} needs a description: {agent.name!r} delegates to it by that."


def clear() -> None:
    """Forget all agents. For tests."""
    with _lock:
        _state.agents.clear()
        _state.modules.clear()
        _state.broken.clear()


@contextmanager
def isolated() -> Iterator[None]:
    """What is registered, cleared or broken inside is undone at the end. For tests."""
    with _lock:
        known, modules, broken = dict(_state.agents), dict(_state.modules), dict(_state.broken)
    try:
        yield
    finally:
        with _lock:
            clear()
            _state.agents.update(known)
            _state.modules.update(modules)
            _state.broken.update(broken)
