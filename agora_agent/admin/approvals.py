"""The inbox: calls that wait for a person, each with everything needed to decide on one page."""

from __future__ import annotations

from typing import Any, ClassVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from agora_agent.admin import words
from agora_agent.admin.base import ReadOnlyMixin, note_foreign_read, principal_of, tenant_of
from agora_agent.admin.card import card_context
from agora_agent.admin.outcomes import outcome_of
from agora_agent.agents import registry
from agora_agent.exceptions import AgoraError, NotVisible
from agora_agent.governance import decisions, ownership
from agora_agent.governance.refusals import note_refusal
from agora_agent.governance.rights import DECIDE_ANY, VIEW_ALL_RUNS, has_perm, holds
from agora_agent.governance.shown import Reader
from agora_agent.models import PendingApproval, ToolCall
from agora_agent.templatetags.agora_admin import ago, until, visible

REASON_CHARACTERS = 2000
_CACHE = "_agora_decides_something"


class WhoseFilter(admin.SimpleListFilter):
    """Mine by default; anyone's for those who may read all runs."""

    title = gettext_lazy("whose turn")
    parameter_name = "whose"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        choices = [("asked", gettext_lazy("asked by me"))]
        if sees_all(request.user):
            choices.append(("anyone", gettext_lazy("anyone")))
        return choices

    def choices(self, changelist: Any) -> Any:
        first, *others = super().choices(changelist)
        yield {**first, "display": gettext_lazy("waiting for me")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        match self.value():
            case "asked":
                return queryset.filter(run__actor=request.user.pk, run__actor_kind="user")
            case "anyone" if sees_all(request.user):
                return queryset
        return queryset.filter(pk__in=ownership.inbox(request.user, tenant_of(request)).values("pk"))


class PendingApprovalAdminMixin(ReadOnlyMixin):
    """The list of what waits, and the card of one call."""

    list_display = ("what", "requester", "agent", "tool", "age", "deadline", "who")
    list_display_links = ("what",)
    list_filter: ClassVar[Any] = (WhoseFilter,)
    #: By urgency: the nearest deadline first, then the oldest.
    ordering: ClassVar[Any] = (models.F("expires_at").asc(nulls_last=True), "created_at")
    sortable_by: ClassVar[Any] = ("tool", "age", "deadline")
    actions = None
    empty_list = gettext_lazy(
        "Nothing waits for you. A call appears here when an agent asks for your approval."
    )

    # -- who sees it -------------------------------------------------------------------------------------------

    def has_module_permission(self, request: HttpRequest) -> bool:
        return decides_something(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is not None:
            return ownership.can_see_call(request.user, obj, tenant_of(request))
        return decides_something(request)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        waiting: Any = PendingApproval.objects.pending()
        rows: models.QuerySet[Any] = (
            waiting.filter(status=ToolCall.Status.PENDING_APPROVAL, run__tenant=tenant_of(request))
            .select_related("run", "run__actor")
            .defer("output", "error", "run__input", "run__answer", "run__error_detail")
        )
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        # What is not theirs to see gets the same answer as what does not exist.
        call = super().get_object(request, object_id, from_field)
        return call if call is not None and self.has_view_permission(request, call) else None

    def detail_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        # Decided ones too: a link that somebody was sent shows what came of it.
        asked = PendingApproval.objects.exclude(tier=ToolCall.Tier.NONE)
        return asked.select_related("run", "run__actor", "decided_by")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changelist = super().get_changelist_instance(request)
        reader = Reader(request.user)
        for call in changelist.result_list:  # columns are not told who asks
            call.reader = reader
        return changelist

    # -- pages -------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.decide_view)
        own = [
            path(
                f"<path:object_id>/{verdict}/",
                view,
                {"verdict": verdict},
                name=f"agora_agent_pendingapproval_{verdict}",
            )
            for verdict in ("approve", "reject")
        ]
        return own + super().get_urls()

    def note_read(self, request: HttpRequest, obj: Any) -> None:
        note_foreign_read(request, obj.run.actor_id, "call", obj.pk)

    def get_detail_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        following = ownership.inbox(request.user, tenant_of(request)).exclude(pk=obj.pk)
        return {
            **card_context(obj, request.user),
            "may_open_run": self._may_open_run(request, obj),
            "next_call": following.filter(status=ToolCall.Status.PENDING_APPROVAL).first(),
            "reason_characters": REASON_CHARACTERS,
        }

    def _may_open_run(self, request: HttpRequest, call: Any) -> bool:
        pages = request.user.has_perm("agora_agent.view_agentrun") or request.user.has_perm(VIEW_ALL_RUNS)
        return (
            pages and ownership.visible_runs(request.user, tenant_of(request)).filter(pk=call.run_id).exists()
        )

    def decide_view(self, request: HttpRequest, object_id: str, verdict: str) -> HttpResponse:
        """POST decides and leads back to the card; GET (after a new sign-in) only leads there."""
        call = self.get_object(request, unquote(object_id))
        if call is None:
            if request.method == "POST":
                note_refusal(NotVisible(), principal_of(request), verdict, unquote(object_id))
            return self.gone(request)
        back = self.url("agora_agent_pendingapproval_change", call.pk)
        if request.method != "POST":
            return HttpResponseRedirect(back)
        reason = request.POST.get("reason", "").strip()
        if problem := _reason_problem(verdict, reason):
            return self.detail_response(request, call, reason_error=problem, reason=reason, refused=verdict)
        level, text = self._decide(request, call, verdict, reason)
        self.message_user(request, text, level)
        return HttpResponseRedirect(back)

    def _decide(self, request: HttpRequest, call: Any, verdict: str, reason: str) -> tuple[int, str]:
        shown_round = request.POST.get("round", "")
        try:
            standing = decisions.decide(
                principal_of(request),
                run_id=call.run_id,
                call_id=call.call_id,
                verdict=verdict,  # type: ignore[arg-type]
                reason=reason,
                digest=request.POST.get("digest", ""),
                round=int(shown_round)
                if shown_round.isdecimal() and len(shown_round) < 6
                else 0,  # no round is no yes
            )
        except AgoraError as error:
            return outcome_of(error, call)
        if standing.repeated:
            return messages.INFO, _("You had said so already: nothing was changed.")
        self.log_change(request, call, _("Approved.") if verdict == "approve" else _("Rejected."))
        text = {
            "approve": _("Approved: %(tool)s runs now."),
            "reject": _("Rejected: %(tool)s does not run; the model is told why."),
        }[verdict]
        return messages.SUCCESS, text % {"tool": call.tool_name}

    # -- columns -----------------------------------------------------------------------------------------------

    @admin.display(description=gettext_lazy("what will happen"))
    def what(self, call: Any) -> SafeString:
        return format_html('<span class="agora-what">{}</span>', visible(words.sentence(call, call.reader)))

    @admin.display(description=gettext_lazy("requester"))
    def requester(self, call: ToolCall) -> SafeString:
        return visible(words.person(call.run.actor, call.run.actor_ref))

    @admin.display(description=gettext_lazy("agent"))
    def agent(self, call: ToolCall) -> SafeString:
        return visible(call.run.agent)

    @admin.display(description=gettext_lazy("tool"), ordering="tool_name")
    def tool(self, call: ToolCall) -> SafeString:
        return visible(call.tool_name)

    @admin.display(description=gettext_lazy("asked"), ordering="created_at")
    def age(self, call: ToolCall) -> SafeString:
        return ago(call.created_at)

    @admin.display(description=gettext_lazy("deadline"), ordering="expires_at")
    def deadline(self, call: ToolCall) -> SafeString | str:
        return until(call.expires_at) if call.expires_at else _("none")

    @admin.display(description=gettext_lazy("who may decide"))
    def who(self, call: ToolCall) -> SafeString:
        return visible(words.who_decides(call, brief=True))


class PendingApprovalAdmin(PendingApprovalAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Pending approvals on the default site."""


def _reason_problem(verdict: str, reason: str) -> str:
    if verdict == "reject" and not reason:
        return _("Say why: the model and the requester are told.")
    if len(reason) > REASON_CHARACTERS:
        return _("At most %(n)s characters.") % {"n": REASON_CHARACTERS}
    return ""


def sees_all(user: Any) -> bool:
    """True for those who may see what waits for others."""
    return has_perm(user, VIEW_ALL_RUNS) or has_perm(user, DECIDE_ANY)


def decides_something(request: HttpRequest) -> bool:
    """True if the inbox is worth showing: the user is somebody's approver, or something waits for them now.

    The index and every page's navigation ask, so the answer is kept for the request.
    """
    cached: bool | None = getattr(request, _CACHE, None)
    if cached is None:
        user = request.user
        cached = bool(
            user.is_active
            and getattr(user, "is_staff", False)
            and (
                sees_all(user)
                or user.has_perm("agora_agent.view_pendingapproval")
                or any(holds(user, approver) for approver in _approvers())
                or ownership.inbox(user, tenant_of(request)).exists()
            )
        )
        setattr(request, _CACHE, cached)
    return cached


def _approvers() -> list[str]:
    """Whom the registered tools name, each once."""
    if not apps.ready:
        return []
    tools = (tool for agent in registry.agents().values() for tool in agent.tools)
    return sorted({tool.approver for tool in tools if tool.approver})
