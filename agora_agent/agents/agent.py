"""An agent: instructions, tools, and who may start it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.conf import settings

from agora_agent.agents.tool import Tool, valid_name
from agora_agent.exceptions import ConfigurationError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser

    User = AbstractBaseUser | AnonymousUser

logger = logging.getLogger("agora_agent.agents")


@dataclass(frozen=True)
class PromptContext:
    """What instructions that are written per turn may look at."""

    user: User | None
    persona: Persona | None
    page_context: dict[str, Any] | None
    agent: Agent
    #: For a persona's prompt: the agent's own instructions as resolved for this turn.
    base: str = ""


@dataclass(frozen=True)
class Persona:
    """A way to be the agent: further instructions, and fewer tools."""

    name: str
    prompt: str | Callable[[PromptContext], str] = ""
    #: The names of the tools and delegates that it may use; ``None``: all of the agent's.
    tools: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not valid_name(self.name):
            raise ConfigurationError(f"Persona {self.name!r}: {_NAME_RULE}")
        if self.tools is not None:
            object.__setattr__(self, "tools", _names(self.tools, f"Persona {self.name!r}: tools"))


@dataclass(frozen=True)
class Agent:
    """An agent that people can talk to. Declared in an app's ``agents`` module and given to ``register``."""

    name: str
    instructions: str | Callable[[PromptContext], str] = field(repr=False)
    tools: Sequence[Tool] = field(default=(), repr=False)
    #: Other agents, by name, that the model may hand a task to.
    delegates: Sequence[str] = ()
    personas: Sequence[Persona] = field(default=(), repr=False)
    #: The model's name at the provider; ``AGORA_AGENT["MODEL"]`` without it.
    model: str | None = None
    #: A ``ModelProvider`` or the dotted path of its class; ``AGORA_AGENT["MODEL_PROVIDER"]`` without it.
    provider: Any = field(default=None, repr=False)
    #: Who may start it. All that are given must hold; with none, nobody outside ``DEBUG``.
    permission: str | None = None
    group: str | None = None
    public: bool = False
    #: Model calls in one turn; ``AGORA_AGENT["MAX_STEPS"]`` without it.
    max_steps: int | None = None
    #: The model may put questions to the person.
    ask: bool = False
    description: str = ""
    display_name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "personas", tuple(self.personas))
        object.__setattr__(self, "delegates", _names(self.delegates, f"Agent {self.name!r}: delegates"))
        if problem := self._problem():
            raise ConfigurationError(f"Agent {self.name!r}: {problem}")

    def _problem(self) -> str:
        if not valid_name(self.name):
            return _NAME_RULE
        if foreign := [item for item in self.tools if not isinstance(item, Tool)]:
            return f"{foreign[0]!r} is not a tool: decorate it with @tool."
        names = [item.name for item in self.tools] + list(self.delegates) + (["ask"] if self.ask else [])
        if twice := _repeated(names):
            return f"two of its tools and delegates are called {twice!r}."
        if twice := _repeated([persona.name for persona in self.personas]):
            return f"two of its personas are called {twice!r}."
        for persona in self.personas:
            if unknown := set(persona.tools or ()) - set(names):
                return f"persona {persona.name!r} lists what the agent does not have: {', '.join(sorted(unknown))}."
        if self.public and (self.permission or self.group):
            return "public=True lets everybody in: leave permission and group out, or public."
        if self.permission is not None and "." not in self.permission:
            return f"permission={self.permission!r}: write 'app.codename'."
        if self.max_steps is not None and self.max_steps < 1:
            return "max_steps must be 1 or more."
        return ""

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.display_name or self.name.replace("_", " ").capitalize()

    def persona(self, name: str) -> Persona | None:
        """Its persona of this name."""
        return next((persona for persona in self.personas if persona.name == name), None)

    def may_start(self, user: User | None) -> bool:
        """May this user start it? Whatever cannot be found out is a no."""
        if user is None or not user.is_authenticated or not user.is_active:
            return False
        if self.public:
            return True
        if self.permission is None and self.group is None:
            return bool(settings.DEBUG)
        try:
            return self._entitled(user)
        except Exception:
            logger.exception("Who may start agent %s could not be found out: denied", self.name)
            return False

    def _entitled(self, user: Any) -> bool:
        if self.permission is not None and user.has_perm(self.permission) is not True:
            return False
        return self.group is None or bool(user.groups.filter(name=self.group).exists())


_NAME_RULE = "a name is lower-case letters, digits and underscores, begins with a letter, at most 64."


def _names(value: Iterable[str], where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ConfigurationError(f"{where} is a list of names, not one text.")
    names = tuple(value)
    if wrong := [name for name in names if not valid_name(name)]:
        raise ConfigurationError(f"{where}: {wrong[0]!r} is not a name. {_NAME_RULE}")
    return names


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
