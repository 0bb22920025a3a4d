"""Cancelling runs from the admin: a confirmation page, then one service call for each run."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from agora_agent.admin import words
from agora_agent.admin.base import principal_of
from agora_agent.exceptions import AgoraError
from agora_agent.governance.rights import has_perm
from agora_agent.models import AgentRun, ToolCall
from agora_agent.templatetags.agora_admin import short_id
from agora_agent.turn import runner

if TYPE_CHECKING:
    from agora_agent.admin.base import ReadOnlyMixin as _Base
else:
    _Base = object

logger = logging.getLogger("agora_agent.admin")

CANCEL_ANY = "agora_agent.cancel_any_run"
#: Runs that one bulk cancel takes; the rest stay selected for another go.
AT_ONCE = 100


class CancelMixin(_Base):
    """Cancel for one run and for a selection. Never by GET."""

    def may_cancel(self, request: HttpRequest, run: AgentRun) -> bool:
        """The requester, or a holder of ``cancel_any_run``."""
        return run.actor_id == request.user.pk or has_perm(request.user, CANCEL_ANY)

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET asks, POST cancels and leads back to the run."""
        run = self.get_object(request, unquote(object_id))
        if run is None:
            return self.gone(request)
        if not self.may_cancel(request, run):
            raise PermissionDenied
        back = self.url("agora_agent_agentrun_change", run.pk)
        if request.method == "POST":
            outcome = self.cancel_one(request, run)
            level, text = _SINGLE[outcome]
            self.message_user(request, text % {"run": short_id(run.pk)}, level)
            return HttpResponseRedirect(back)
        if run.is_terminal:
            level, text = _SINGLE["ended"]
            self.message_user(request, text % {"run": short_id(run.pk)}, level)
            return HttpResponseRedirect(back)
        live = descendants(run).live()
        waiting = ToolCall.objects.pending().filter(models.Q(run=run) | models.Q(run__in=live))
        context = self.page_context(
            request,
            run,
            title=_("Cancel run %(run)s?") % {"run": short_id(run.pk)},
            children=live.count(),
            pending=waiting.count(),
            wait=words.waits_for(run, run.open_calls),
            back=back,
        )
        return TemplateResponse(request, "admin/agora_agent/agentrun/cancel.html", context)

    def cancel_one(self, request: HttpRequest, run: AgentRun) -> str:
        """Cancel one run through its runner: "cancelled", "ended", "forbidden" or "failed"."""
        if not self.may_cancel(request, run):
            return "forbidden"
        try:
            done = runner.get(run.durable).cancel(run.pk, principal=principal_of(request))
        except AgoraError:
            logger.exception("a run could not be cancelled", extra={"run_id": str(run.pk)})
            return "failed"
        if not done:
            return "ended"
        self.log_change(request, run, _("Cancelled."))
        return "cancelled"

    @admin.action(description=gettext_lazy("Cancel selected runs"))
    def cancel_selected(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> HttpResponse | None:
        """A confirmation page, then each run by the same rules as alone, with a count for each outcome."""
        runs = list(queryset[: AT_ONCE + 1])
        more = len(runs) > AT_ONCE
        runs = runs[:AT_ONCE]
        if not request.POST.get("confirmed"):
            context = self.page_context(
                request,
                None,
                title=_("Cancel these runs?"),
                runs=[
                    (run, words.waits_for(run, run.open_calls), self.may_cancel(request, run)) for run in runs
                ],
                at_once=AT_ONCE if more else 0,
                back=self.url("agora_agent_agentrun_changelist"),
            )
            return TemplateResponse(request, "admin/agora_agent/agentrun/cancel_selected.html", context)
        counts = Counter(self.cancel_one(request, run) for run in runs)
        parts = [_plural(outcome, n) % {"n": n} for outcome in _ORDER if (n := counts[outcome])]
        level = messages.SUCCESS if counts["cancelled"] else messages.WARNING
        self.message_user(request, ", ".join(parts) + ".", level)
        return None


def descendants(run: AgentRun) -> Any:
    """All delegated runs below ``run``, at any depth."""
    if run.parent_id is None:
        return AgentRun.objects.filter(root_id=run.pk).exclude(pk=run.pk)
    found: list[Any] = []
    level = [run.pk]
    while level:
        level = list(AgentRun.objects.filter(parent__in=level).values_list("pk", flat=True))
        found += level
    return AgentRun.objects.filter(pk__in=found)


_SINGLE = {
    "cancelled": (messages.SUCCESS, gettext_lazy("Run %(run)s is cancelled, with everything below it.")),
    "ended": (messages.WARNING, gettext_lazy("Run %(run)s had ended already: nothing was changed.")),
    "forbidden": (messages.ERROR, gettext_lazy("You may not cancel run %(run)s.")),
    "failed": (messages.ERROR, gettext_lazy("Run %(run)s could not be cancelled: see the server's log.")),
}
_ORDER = ("cancelled", "ended", "forbidden", "failed")


def _plural(outcome: str, n: int) -> str:
    match outcome:
        case "cancelled":
            return ngettext("%(n)s run cancelled", "%(n)s runs cancelled", n)
        case "ended":
            return ngettext("%(n)s had already ended", "%(n)s had already ended", n)
        case "forbidden":
            return ngettext("%(n)s is not yours to cancel", "%(n)s are not yours to cancel", n)
    return ngettext("%(n)s could not be cancelled", "%(n)s could not be cancelled", n)
