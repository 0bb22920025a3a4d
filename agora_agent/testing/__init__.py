"""What tests of agents need. Names are imported lazily: importing this package loads no models."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agora_agent.testing.drain import advance, drain
    from agora_agent.testing.scripted import Reply, ScriptedModel
    from agora_agent.testing.server import FakeOpenAI

_NAMES = {
    "FakeOpenAI": "agora_agent.testing.server",
    "Reply": "agora_agent.testing.scripted",
    "ScriptedModel": "agora_agent.testing.scripted",
    "advance": "agora_agent.testing.drain",
    "drain": "agora_agent.testing.drain",
}

__all__ = ["FakeOpenAI", "Reply", "ScriptedModel", "advance", "drain"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # An import of the module agora_agent.testing.drain would bind it over the function of that name.
        if not (name in _NAMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
