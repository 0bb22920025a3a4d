"""The durable engine: workflows that remember. Knows nothing about agents, models or people.

``agora_agent.durable.values`` holds the types that travel, ``agora_agent.durable.workflow`` the :class:`Engine`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from agora_agent.exceptions import ConfigurationError

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

_lock = threading.RLock()
_factory: Callable[[], Engine] | None = None
_engine: Engine | None = None


def set_engine_factory(factory: Callable[[], Engine] | None) -> None:
    """Say how this process builds its configured engine; it is built at first use."""
    global _factory, _engine
    with _lock:
        _factory, _engine = factory, None


def get_engine() -> Engine:
    """The engine of this process.

    Raises:
        ConfigurationError: nobody said how to build one.
    """
    global _engine
    with _lock:
        if _engine is None:
            if _factory is None:
                raise ConfigurationError("Durable runs are not configured in this process.")
            _engine = _factory()
        return _engine
