"""The durable engine as a Django app of its own."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class AgoraDurableConfig(AppConfig):
    """Journal, tasks and signals. Knows nothing about agents."""

    name = "agora_agent.durable"
    label = "agora_durable"
    verbose_name = _("Durable workflows")
    default_auto_field = "django.db.models.BigAutoField"
