"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class AgoraAgentConfig(AppConfig):
    """Registers checks and discovers the agents that the installed apps declare."""

    name = "agora_agent"
    label = "agora_agent"
    verbose_name = _("AI agents")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from agora_agent import checks  # noqa: F401
        from agora_agent.agents.registry import autodiscover
        from agora_agent.runners.resolver import register_engine_factory

        autodiscover()
        register_engine_factory()
