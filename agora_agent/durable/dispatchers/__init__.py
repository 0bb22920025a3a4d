"""How a process that could work on a run hears of it. Hints only: correctness never depends on one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.module_loading import import_string

from agora_agent.exceptions import ConfigurationError

if TYPE_CHECKING:
    from agora_agent.durable.dispatchers.base import Dispatcher

NAMED = {
    "thread": f"{__name__}.thread.ThreadDispatcher",
    "worker": f"{__name__}.worker.WorkerDispatcher",
    "django_q": f"{__name__}.django_q.DjangoQDispatcher",
    "immediate": f"{__name__}.immediate.ImmediateDispatcher",
}


def resolve_dispatcher(name: str) -> Dispatcher:
    """A new dispatcher by its short name or its class's dotted path.

    Raises:
        ConfigurationError: there is no such class.
    """
    try:
        dispatcher: Dispatcher = import_string(NAMED.get(name, name))()
    except ImportError as error:
        known = ", ".join(sorted(NAMED))
        raise ConfigurationError(
            f"There is no dispatcher {name!r}: use {known} or a dotted path. ({error})"
        ) from error
    return dispatcher
