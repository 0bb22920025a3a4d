"""The scripted model for tests: as :mod:`agora_agent.providers.scripted`, without pauses."""

from __future__ import annotations

from agora_agent.providers import scripted
from agora_agent.providers.scripted import Reply, Script

__all__ = ["Reply", "Script", "ScriptedModel"]


class ScriptedModel(scripted.ScriptedModel):
    """A model that answers by a script, at once."""

    def __init__(self, script: Script | None = None, *, delay_seconds: float = 0.0) -> None:
        super().__init__(script, delay_seconds=delay_seconds)
