"""Which runner is in use: resolved lazily, falling back to the inline one with a warning."""

from __future__ import annotations

import logging
import threading
from functools import lru_cache
from typing import Any

from django.apps import apps
from django.core.signals import setting_changed
from django.db import connections

from agora_agent.conf import SETTING, agora_settings
from agora_agent.exceptions import ConfigurationError
from agora_agent.models import AgentRun, write_alias
from agora_agent.turn.runner import AgentRunner, DurableState

logger = logging.getLogger("agora_agent.runners")

_lock = threading.Lock()
_warned: set[str] = set()
_migrated: set[str] = set()


def get_runner(durable: bool | None = None) -> AgentRunner:
    """See :func:`agora_agent.turn.runner.get`."""
    if durable is None:
        durable = durable_state().on
    elif durable and not apps.is_installed("agora_agent.durable"):
        raise ConfigurationError("This run is durable: put 'agora_agent.durable' into INSTALLED_APPS.")
    return _durable_runner() if durable else _inline_runner()


def durable_state() -> DurableState:
    """See :func:`agora_agent.turn.runner.durable_state`. Warns once for each reason.

    Raises:
        ConfigurationError: durable runs are required and cannot be wired.
    """
    asked = agora_settings.DURABLE
    if not asked:
        return DurableState(False, False, "")
    reason = _why_not()
    if reason and asked == "required":
        raise ConfigurationError(f"Durable runs are required, but {reason}.")
    if reason:
        with _lock:
            if reason not in _warned:
                _warned.add(reason)
                logger.warning("Durable runs are asked for, but %s: runs are inline.", reason)
    return DurableState(True, not reason, reason)


def _why_not() -> str:
    if not apps.is_installed("agora_agent.durable"):
        return "the app 'agora_agent.durable' is not in INSTALLED_APPS"
    alias = write_alias()
    if alias in _migrated:
        return ""
    try:
        table = apps.get_model("agora_durable", "Run")._meta.db_table
        found = table in connections[alias].introspection.table_names()
    except Exception as error:
        logger.exception("the durable engine cannot be wired")
        return f"its tables could not be looked at ({type(error).__name__})"
    if not found:
        return "its tables are missing (run: manage.py migrate)"
    _migrated.add(alias)
    return ""


@lru_cache(maxsize=1)
def _inline_runner() -> AgentRunner:
    from agora_agent.runners.inline import InlineAgentRunner

    return InlineAgentRunner()


def _durable_runner() -> AgentRunner:
    from agora_agent.durable import get_engine
    from agora_agent.runners.durable import DurableAgentRunner

    return DurableAgentRunner(get_engine())


def register_engine_factory() -> None:
    """Tell the engine's own entry points (workers, queue tasks) how this project's engine is built."""
    if apps.is_installed("agora_agent.durable"):
        from agora_agent.durable import set_engine_factory

        set_engine_factory(_build_engine)


def _build_engine() -> Any:
    from agora_agent.runners.durable import build_engine

    return build_engine()


def serve_engine() -> None:
    """Let this process drive durable runs, where its dispatcher says that it does.

    Also with durable runs switched off, as long as earlier ones are live: they go on to their end.
    """
    if durable_state().on or _has_live_durable_runs():
        from agora_agent.durable import get_engine

        get_engine().serve()


def _has_live_durable_runs() -> bool:
    return not _why_not() and AgentRun.objects.filter(durable=True).live().exists()


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting in (SETTING, "INSTALLED_APPS"):
        _warned.clear()
        _migrated.clear()
        register_engine_factory()


setting_changed.connect(_reset, dispatch_uid="agora_agent.runners")
