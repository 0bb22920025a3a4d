"""Records for auditors and bookkeepers: audit chain, reads of other people's data, usage."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db import models
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from agora_agent.admin import words
from agora_agent.admin.base import ReadOnlyMixin, tenant_of
from agora_agent.admin.filters import DoorFilter
from agora_agent.admin.ids import ids_from, is_id_beginning
from agora_agent.governance.audit import SYSTEM
from agora_agent.governance.rights import VIEW_ALL_RUNS, has_perm
from agora_agent.templatetags.agora_admin import exact, tail, visible, when


class _Record(ReadOnlyMixin):
    """A row of facts; its detail page lists the columns."""

    actions = None
    detail_fields: ClassVar[tuple[str, ...]] = ()

    def get_detail_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        fields: list[Any] = [self.opts.get_field(name) for name in self.detail_fields]
        rows = [(field, getattr(obj, field.name)) for field in fields]
        return {
            "title": f"{self.opts.verbose_name} {obj}"[:1].upper() + f"{self.opts.verbose_name} {obj}"[1:],
            "rows": [(field.verbose_name, value, type(field).__name__) for field, value in rows],
        }

    @admin.display(description=_("door"), ordering="via")
    def door(self, entry: Any) -> str:
        return words.door(entry.via)

    @admin.display(description=_("subject"), ordering="subject_ref")
    def subject(self, entry: Any) -> SafeString:
        return visible(entry.subject_ref or "—")

    @admin.display(description=_("at"), ordering="at")
    def time(self, entry: Any) -> SafeString:
        return when(entry.at)


class AuditEntryAdminMixin(_Record):
    """The audit chain: append-only, here to be read."""

    list_display = ("number", "chain_id", "action", "subject", "door", "time")
    list_display_links = ("number",)
    list_filter: ClassVar[Any] = (DoorFilter, "at")
    ordering = ("-id",)
    search_fields = ("chain",)
    search_help_text = _("The id of a run, or “system”: shows its chain.")
    empty_list = _("No entry yet: decisions, cancels and other acts of people are written here.")
    detail_fields = (
        "chain",
        "number",
        "action",
        "subject_ref",
        "via",
        "at",
        "content",
        "previous",
        "hash",
    )

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        term = search_term.strip().lower()
        return (queryset.filter(chain=term) if term else queryset), False

    @admin.display(description=_("chain"), ordering="chain")
    def chain_id(self, entry: Any) -> SafeString:
        return tail(entry.chain) if entry.chain == SYSTEM else self.link("agentrun", entry.chain)


class AccessEntryAdminMixin(_Record):
    """Reads of other people's data, and refused decisions."""

    list_display = ("id", "action", "subject", "door", "time")
    list_filter: ClassVar[Any] = (DoorFilter, "at")
    ordering = ("-id",)
    empty_list = _("No entry yet: reads of other people's data and refused decisions are written here.")
    detail_fields = ("action", "subject_ref", "via", "at", "content")


class UsageAdminMixin(_Record):
    """What each model call took; unknown stays unknown."""

    list_display = (
        "id",
        "in_run",
        "step",
        "attempt",
        "model_name",
        "state",
        "tokens_in",
        "tokens_out",
        "cost",
        "time",
    )
    list_filter: ClassVar[Any] = ("state", "created_at")
    ordering = ("-id",)
    search_fields = ("run__id",)
    search_help_text = _("A run id; its first characters are enough.")
    empty_list = _("No usage yet: each model call leaves a row here.")
    detail_fields = (
        "run",
        "step",
        "attempt",
        "purpose",
        "model",
        "state",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "reasoning_tokens",
        "cost_usd",
        "created_at",
    )

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        rows = super().get_queryset(request).filter(run__tenant=tenant_of(request))
        if has_perm(request.user, VIEW_ALL_RUNS):
            return rows
        return rows.filter(run__actor=request.user.pk, run__actor_kind="user")

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return (
            queryset.filter(ids_from("run__id", term)) if is_id_beginning(term) else queryset.none()
        ), False

    @admin.display(description=_("run"))
    def in_run(self, usage: Any) -> SafeString:
        return self.link("agentrun", usage.run_id)

    @admin.display(description=_("model"), ordering="model")
    def model_name(self, usage: Any) -> SafeString:
        return visible(usage.model or "—")

    @admin.display(description=_("input tokens"), ordering="input_tokens")
    def tokens_in(self, usage: Any) -> Any:
        return _("unknown") if usage.input_tokens is None else usage.input_tokens

    @admin.display(description=_("output tokens"), ordering="output_tokens")
    def tokens_out(self, usage: Any) -> Any:
        return _("unknown") if usage.output_tokens is None else usage.output_tokens

    @admin.display(description=_("cost, USD"), ordering="cost_usd")
    def cost(self, usage: Any) -> Any:
        return _("unknown") if usage.cost_usd is None else exact(usage.cost_usd)

    @admin.display(description=_("created"), ordering="created_at")
    def time(self, usage: Any) -> SafeString:
        return when(usage.created_at)


class AuditEntryAdmin(AuditEntryAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Audit entries on the default site."""


class AccessEntryAdmin(AccessEntryAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Access entries on the default site."""


class UsageAdmin(UsageAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Usage on the default site."""
