"""The one settings dict, ``AGORA_AGENT``: typed, validated, read at each access.

A class attribute is a setting: its annotation is the type that the value must have, its value the default, the
comment above it what it does. Dotted paths (``str``, listed in ``IMPORT_STRINGS``) are resolved lazily.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, TypedDict

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from agora_agent.exceptions import ConfigurationError

SETTING = "AGORA_AGENT"


class Settings:
    """Defaults and types. Units are in the names."""

    # Run turns on database checkpoints. "required": refuse to start where that cannot be wired, instead of
    # warning and running inline.
    DURABLE: bool | Literal["required"] = False
    # How a hint reaches a process that drives runs: "thread" (this process), "worker" (agora_worker polls),
    # "django_q", "immediate" (tests), or a dotted path.
    DISPATCHER: str = "thread"
    # Who calls the model, and which model an agent uses that names none.
    MODEL_PROVIDER: str = "agora_agent.providers.openai.OpenAIProvider"
    MODEL: str = "gpt-4o-mini"
    # Where the OpenAI provider finds its server. None: the SDK's own environment variables.
    OPENAI_BASE_URL: str | None = None
    OPENAI_API_KEY: str | None = None
    # The longest that one model call may take.
    MODEL_TIMEOUT_SECONDS: float = 300.0
    # From a request to (kind, user, tenant).
    ACTOR_RESOLVER: str = "agora_agent.governance.actors.AuthActorResolver"
    # May this actor use this tool? Asked after agent, persona and Django permission have said yes.
    TOOL_POLICY: str = "agora_agent.governance.policy.DeclaredToolPolicy"
    # Must a person be asked about this call, whom, until when?
    APPROVAL_POLICY: str = "agora_agent.governance.policy.DeclaredApprovalPolicy"
    # The module of each installed app that declares agents and tools.
    AGENTS_MODULE: str = "agents"
    # A turn ends after so many model calls, and a model may ask for so many tool calls in one of them.
    MAX_STEPS: int = 8
    MAX_TOOL_CALLS_PER_STEP: int = 32
    # How many earlier messages of the thread ride in the prompt.
    HISTORY_MAX_MESSAGES: int = 50
    # How deep and how wide agents may delegate.
    MAX_DELEGATION_DEPTH: int = 4
    MAX_CHILDREN_PER_RUN: int = 8
    MAX_RUNS_PER_TREE: int = 24
    # A process that does not renew its lease for this long has lost its run.
    LEASE_SECONDS: float = 30.0
    # How often a process looks for runs that nobody woke.
    SWEEP_SECONDS: float = 5.0
    # Threads that drive runs in one process. They wait on sockets, so dozens are fine.
    WORKER_THREADS: int = 8
    # How often agora_worker looks for work when nothing woke it.
    WORKER_POLL_SECONDS: float = 0.2
    # The longest that one model or tool step keeps its lease.
    STEP_DEADLINE_SECONDS: float = 900.0
    # Turns that the inline runner executes at once in one process (waiting ones do not count); above: 503.
    INLINE_MAX_CONCURRENCY: int = 8
    # How long an approval that was given stays good for an effect that has not begun.
    APPROVAL_VALID_SECONDS: float = 86400.0
    # An idle stream sends a comment, and looks again whether its reader may still read.
    STREAM_KEEPALIVE_SECONDS: float = 15.0
    # Open streams: of one process (then 503), of one actor (then 429).
    STREAM_MAX_PER_PROCESS: int = 1000
    STREAM_MAX_PER_ACTOR: int = 8
    # What one request and one actor may hold.
    MAX_BODY_BYTES: int = 262144
    MAX_LIVE_RUNS_PER_ACTOR: int = 5
    MAX_PARKED_RUNS_PER_ACTOR: int = 50
    MAX_PENDING_CALLS_PER_ACTOR: int = 20
    # Register the model admins on the default site.
    REGISTER_ADMIN: bool = True


class AgoraAgentSettings(TypedDict, total=False):
    """The type of ``AGORA_AGENT`` for a settings module that is checked."""

    DURABLE: bool | Literal["required"]
    DISPATCHER: str
    MODEL_PROVIDER: str
    MODEL: str
    OPENAI_BASE_URL: str | None
    OPENAI_API_KEY: str | None
    MODEL_TIMEOUT_SECONDS: float
    ACTOR_RESOLVER: str
    TOOL_POLICY: str
    APPROVAL_POLICY: str
    AGENTS_MODULE: str
    MAX_STEPS: int
    MAX_TOOL_CALLS_PER_STEP: int
    HISTORY_MAX_MESSAGES: int
    MAX_DELEGATION_DEPTH: int
    MAX_CHILDREN_PER_RUN: int
    MAX_RUNS_PER_TREE: int
    LEASE_SECONDS: float
    SWEEP_SECONDS: float
    WORKER_THREADS: int
    WORKER_POLL_SECONDS: float
    STEP_DEADLINE_SECONDS: float
    INLINE_MAX_CONCURRENCY: int
    APPROVAL_VALID_SECONDS: float
    STREAM_KEEPALIVE_SECONDS: float
    STREAM_MAX_PER_PROCESS: int
    STREAM_MAX_PER_ACTOR: int
    MAX_BODY_BYTES: int
    MAX_LIVE_RUNS_PER_ACTOR: int
    MAX_PARKED_RUNS_PER_ACTOR: int
    MAX_PENDING_CALLS_PER_ACTOR: int
    REGISTER_ADMIN: bool


IMPORT_STRINGS = ("MODEL_PROVIDER", "ACTOR_RESOLVER", "TOOL_POLICY", "APPROVAL_POLICY")
_POSITIVE = (int, float)


@lru_cache(maxsize=1)
def _types() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def _user_settings() -> dict[str, Any]:
    value = getattr(django_settings, SETTING, {})
    if not isinstance(value, dict):
        raise ConfigurationError(f"{SETTING} must be a dict, not {type(value).__name__}.")
    return value


def _fits(value: Any, wanted: Any) -> bool:
    origin = typing.get_origin(wanted)
    if origin is Literal:
        return value in typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(wanted))
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted if wanted in (int, bool) else isinstance(value, wanted)


def problems() -> Iterator[tuple[str, str, str]]:
    """What is wrong with ``AGORA_AGENT``: triples (kind, message, hint), kind is "unknown" or "type"."""
    try:
        user = _user_settings()
    except ConfigurationError as error:
        yield "type", error.message, f"Write {SETTING} = {{…}}."
        return
    known = _types()
    for name, value in user.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(sorted(known))}."
            yield "unknown", f"{SETTING} has no setting {name!r}.", hint
        elif name in IMPORT_STRINGS and not isinstance(value, str):
            if not callable(value):
                yield (
                    "type",
                    f"{SETTING}[{name!r}] must be a dotted path or a class.",
                    "Name an importable class.",
                )
        elif not _fits(value, known[name]):
            wanted = getattr(known[name], "__name__", str(known[name]))
            yield (
                "type",
                f"{SETTING}[{name!r}] must be {wanted}, not {value!r}.",
                "See the settings reference.",
            )
        elif type(value) in _POSITIVE and value <= 0:
            yield (
                "type",
                f"{SETTING}[{name!r}] must be greater than 0, not {value!r}.",
                "Use a positive number.",
            )


class _Settings(Settings):
    """Reads each setting at access: the project's value, else the default."""

    def __getattribute__(self, name: str) -> Any:
        if not name.isupper():
            return super().__getattribute__(name)
        default = super().__getattribute__(name)
        return _user_settings().get(name, default)


agora_settings: Settings = _Settings()


@lru_cache(maxsize=32)
def _resolve(name: str, path: Any) -> Any:
    if not isinstance(path, str):
        return path
    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"{SETTING}[{name!r}] = {path!r} cannot be imported: {error}") from error


def resolve(name: str) -> Any:
    """The object that the dotted path in setting ``name`` names.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    return _resolve(name, getattr(agora_settings, name))


@lru_cache(maxsize=32)
def _instance(name: str, path: Any) -> Any:
    return _resolve(name, path)()


def instance(name: str) -> Any:
    """The process-wide object of the class that setting ``name`` names, made at first use."""
    return _instance(name, getattr(agora_settings, name))


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        _resolve.cache_clear()
        _instance.cache_clear()


setting_changed.connect(_forget, dispatch_uid="agora_agent.conf")


def agent_durable(**options: Any) -> dict[str, Any]:
    """Settings for durable runs in one line: ``AGORA_AGENT = agent_durable(MODEL="gpt-4o-mini")``.

    Args:
        **options: any other setting, by its name.

    Returns:
        A dict for ``AGORA_AGENT`` with ``DURABLE`` on. ``INSTALLED_APPS`` needs ``"agora_agent.durable"`` beside
        ``"agora_agent"``; a check says so where it is missing.
    """
    return {"DURABLE": True, **options}
