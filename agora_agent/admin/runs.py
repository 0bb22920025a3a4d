"""Runs: what each does, what it waits for, what it did; and its cancel."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import models
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from agora_agent.admin import words
from agora_agent.admin.base import ReadOnlyMixin, note_foreign_read, tenant_of
from agora_agent.admin.cancel import CancelMixin
from agora_agent.admin.filters import AgentFilter
from agora_agent.admin.ids import ids_from, is_id_beginning
from agora_agent.admin.run_detail import run_context
from agora_agent.exceptions import ConfigurationError
from agora_agent.governance import ownership
from agora_agent.models import AgentRun, ToolCall
from agora_agent.templatetags.agora_admin import ago, pill, short_id, tail, visible
from agora_agent.turn import runner
from agora_agent.turn.runner import DurableState

#: Columns that a list never loads: they can hold megabytes.
HEAVY = ("input", "requesters", "answer", "error_detail")


def open_calls() -> models.Prefetch[Any]:
    """The calls without an outcome, as ``run.open_calls``, without what they carry."""
    calls = ToolCall.objects.unsettled().only(
        "id", "run_id", "status", "kind", "tool_name", "approver", "created_at"
    )
    return models.Prefetch("tool_calls", queryset=calls, to_attr="open_calls")


class RunAdminMixin(CancelMixin, ReadOnlyMixin):
    """The list and the detail page of runs."""

    list_display = (
        "run",
        "state",
        "waits_for",
        "agent_name",
        "requester",
        "age",
        "steps",
        "runner",
        "in_thread",
    )
    list_filter: ClassVar[Any] = ("status", "phase", AgentFilter, "durable", "created_at")
    list_display_links = ("run",)
    ordering = ("-created_at",)
    search_fields = ("id",)
    search_help_text = _(
        "A run id or thread id (its first characters are enough), or a requester's name in full."
    )
    actions: Any = ["cancel_selected"]
    empty_list = _("No run is here yet: one begins when somebody sends a message to an agent.")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or request.user.has_perm("agora_agent.view_all_runs")

    def detail_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        runs = ownership.visible_runs(request.user, tenant_of(request))
        return runs.select_related("actor", "thread", "parent").prefetch_related(open_calls())

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        runs = ownership.visible_runs(request.user, tenant_of(request))
        return runs.defer(*HEAVY).select_related("actor").prefetch_related(open_calls())

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if is_id_beginning(term):
            found = ids_from("id", term) | ids_from("thread__id", term)
        else:
            found = models.Q(**{f"actor__{get_user_model().USERNAME_FIELD}": term})
        return queryset.filter(found), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, {"durable_state": durable_state(), **(extra_context or {})})

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.cancel_view)
        own = [path("<path:object_id>/cancel/", view, name="agora_agent_agentrun_cancel")]
        return own + super().get_urls()

    def note_read(self, request: HttpRequest, obj: Any) -> None:
        note_foreign_read(request, obj.actor_id, "run", obj.pk)

    def get_detail_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        return {
            "title": _("Run %(id)s") % {"id": short_id(obj.pk)},
            "may_cancel": self.may_cancel(request, obj),
            "durable_state": durable_state(),
            **run_context(obj, request),
        }

    @admin.display(description=_("run"), ordering="id")
    def run(self, run: AgentRun) -> SafeString:
        return tail(run.pk)

    @admin.display(description=_("status"), ordering="status")
    def state(self, run: AgentRun) -> SafeString:
        return pill(words.run_tone(run, run.open_calls), run.get_status_display())  # type: ignore[attr-defined]

    @admin.display(description=_("waits for"), ordering="phase")
    def waits_for(self, run: AgentRun) -> SafeString:
        return visible(words.waits_for(run, run.open_calls).headline)  # type: ignore[attr-defined]

    @admin.display(description=_("agent"), ordering="agent")
    def agent_name(self, run: AgentRun) -> SafeString:
        if run.parent_id:
            return format_html('{} <span class="agora-note">{}</span>', visible(run.agent), _("delegated"))
        return visible(run.agent)

    @admin.display(description=_("requester"))
    def requester(self, run: AgentRun) -> SafeString:
        return visible(words.person(run.actor, run.actor_ref))

    @admin.display(description=_("thread"))
    def in_thread(self, run: AgentRun) -> SafeString:
        if run.parent_id:  # its own thread is a transcript that is listed nowhere
            return format_html(
                '<span class="agora-note">{} {}</span>', _("of"), self.link("agentrun", run.parent_id)
            )
        return self.link("thread", run.thread_id)

    @admin.display(description=_("runner"), ordering="durable")
    def runner(self, run: AgentRun) -> Any:
        return _("durable") if run.durable else _("inline")

    @admin.display(description=_("created"), ordering="created_at")
    def age(self, run: AgentRun) -> SafeString:
        return ago(run.created_at)


class RunAdmin(RunAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Runs on the default site."""


def durable_state() -> DurableState:
    """Whether durable runs were asked for and are on; where they are required and cannot be, why."""
    try:
        return runner.durable_state()
    except ConfigurationError as error:
        return DurableState(True, False, error.message)
