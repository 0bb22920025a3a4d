"""List filters that ask the database nothing to draw themselves."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from agora_agent.admin import words
from agora_agent.agents import registry


class AgentFilter(admin.SimpleListFilter):
    """By agent: the registered ones, not what a scan of the table would find."""

    title = _("agent")
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted(registry.agents())]

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        return queryset.filter(agent=self.value()) if self.value() else queryset


class DoorFilter(admin.SimpleListFilter):
    """By the door through which somebody acted."""

    title = _("door")
    parameter_name = "via"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return words.doors()

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        return queryset.filter(via=self.value()) if self.value() else queryset
