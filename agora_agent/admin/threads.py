"""Threads: who talks with which agent, and what was said."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import models
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from agora_agent.admin import words
from agora_agent.admin.base import ReadOnlyMixin, note_foreign_read, tenant_of
from agora_agent.admin.ids import ids_from, is_id_beginning
from agora_agent.admin.runs import open_calls
from agora_agent.governance import ownership
from agora_agent.templatetags.agora_admin import ago, short_id, tail, visible

#: Messages and runs of one page: the newest.
SHOWN = 100


class ThreadAdminMixin(ReadOnlyMixin):
    """The list of threads and the transcript of one."""

    list_display = ("thread", "called", "owner", "agent", "messages", "active", "age")
    list_filter: ClassVar[Any] = ("updated_at",)
    list_display_links = ("thread",)
    ordering = ("-updated_at",)
    search_fields = ("id",)
    search_help_text = _("A thread id (its first characters are enough), or an owner's name in full.")
    actions = None
    empty_list = _(
        "No thread is here yet: one begins with the first message that somebody sends to an agent."
    )

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or request.user.has_perm("agora_agent.view_all_runs")

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        return ownership.visible_threads(request.user, tenant_of(request)).select_related("actor")

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if is_id_beginning(term):
            return queryset.filter(ids_from("id", term)), False
        return queryset.filter(**{f"actor__{get_user_model().USERNAME_FIELD}": term}), False

    def note_read(self, request: HttpRequest, obj: Any) -> None:
        note_foreign_read(request, obj.actor_id, "thread", obj.pk)

    def get_detail_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        said = list(obj.messages.order_by("-seq")[: SHOWN + 1])
        runs = ownership.visible_runs(request.user, tenant_of(request)).filter(thread=obj, parent=None)
        runs = runs.defer("input", "requesters", "answer", "error_detail").select_related("actor")
        newest = list(runs.prefetch_related(open_calls()).order_by("-created_at")[:SHOWN])
        return {
            "title": obj.title or _("Thread %(id)s") % {"id": short_id(obj.pk)},
            "owner": words.person(obj.actor, obj.actor_ref),
            "transcript": said[:SHOWN][::-1],
            "transcript_cut": len(said) > SHOWN,
            "runs": [
                (run, words.run_tone(run, run.open_calls), words.waits_for(run, run.open_calls))  # type: ignore[attr-defined]
                for run in newest
            ],
            "shown_messages": SHOWN,
        }

    @admin.display(description=_("thread"), ordering="id")
    def thread(self, thread: Any) -> SafeString:
        return tail(thread.pk)

    @admin.display(description=_("title"), ordering="title")
    def called(self, thread: Any) -> SafeString:
        return visible(thread.title or "—")

    @admin.display(description=_("owner"))
    def owner(self, thread: Any) -> SafeString:
        return visible(words.person(thread.actor, thread.actor_ref))

    @admin.display(description=_("agent"), ordering="default_agent")
    def agent(self, thread: Any) -> SafeString:
        return visible(thread.default_agent or "—")

    @admin.display(description=_("messages"), ordering="last_seq")
    def messages(self, thread: Any) -> int:
        return int(thread.last_seq)

    @admin.display(description=_("active run"))
    def active(self, thread: Any) -> SafeString | str:
        return self.link("agentrun", thread.active_run_id) if thread.active_run_id else "—"

    @admin.display(description=_("last activity"), ordering="updated_at")
    def age(self, thread: Any) -> SafeString:
        return ago(thread.updated_at)


class ThreadAdmin(ThreadAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Threads on the default site."""
