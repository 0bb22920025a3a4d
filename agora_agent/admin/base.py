"""What all pages of this admin share: read-only, no full counts, detail pages of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from agora_agent.governance import audit
from agora_agent.governance.actors import impersonator_of, resolve_actor
from agora_agent.governance.principal import Principal
from agora_agent.templatetags.agora_admin import tail

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _Base = object
    _Paginator = Paginator

#: A list says "so many" up to here; older rows are found by filter and search, not by paging.
COUNTED = 1000


class BoundedPaginator(_Paginator):
    """Counts no further than :data:`COUNTED`, so that a page of a huge table costs what a page costs."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, models.QuerySet):
            return rows.order_by()[:COUNTED].count()
        return len(rows)


class ReadOnlyMixin(_Base):
    """Nothing is added, changed or deleted here: rows change through services, each by its own POST form."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each would count the whole table
    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 100
    view_on_site = False
    #: Sentence for an empty list: what would fill it.
    empty_list: ClassVar[Any] = ""

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("agora_agent/admin/agora.css",)}

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_detail_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What the detail page of ``obj`` shows."""
        return {}

    def page_context(self, request: HttpRequest, obj: Any, **extra: Any) -> dict[str, Any]:
        """The context that the admin's own templates expect around a page about ``obj``."""
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": obj,
            "title": str(obj),
            "media": self.media,
            "add": False,
            "change": True,
            "is_popup": False,
            "has_view_permission": self.has_view_permission(request),
            "has_add_permission": False,
            "has_change_permission": False,
            "has_delete_permission": False,
            "preserved_filters": self.get_preserved_filters(request),
            **extra,
        }

    def detail_response(self, request: HttpRequest, obj: Any, **extra: Any) -> TemplateResponse:
        """The detail page."""
        context = self.page_context(request, obj, **{**self.get_detail_context(request, obj), **extra})
        return TemplateResponse(
            request,
            self.change_form_template
            or [
                f"admin/{self.opts.app_label}/{self.opts.model_name}/change_form.html",
                f"admin/{self.opts.app_label}/change_form.html",
            ],
            context,
        )

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        try:
            return self.detail_queryset(request).filter(pk=self.model._meta.pk.to_python(object_id)).first()
        except (ValidationError, ValueError):
            return None

    def detail_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """The rows that have a detail page for this reader, with all their columns."""
        return self.get_queryset(request)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return self.gone(request)
        if not self.has_view_permission(request, obj):
            raise PermissionDenied
        response = self.detail_response(request, obj, **(extra_context or {}))
        response.add_post_render_callback(lambda _response: self.note_read(request, obj))
        return response

    def gone(self, request: HttpRequest) -> HttpResponse:
        """The answer for a row that is not there or not this reader's: the same for both."""
        self.message_user(request, _("There is nothing here that you may see."), messages.WARNING)
        return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))

    def note_read(self, request: HttpRequest, obj: Any) -> None:
        """Called once the detail page of ``obj`` is made."""

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if any("\x00" in value for name in request.GET for value in (name, *request.GET.getlist(name))):
            # No column holds a NUL; PostgreSQL does not even compare with one.
            return HttpResponseRedirect(request.path)
        extra = {
            "title": capfirst(self.opts.verbose_name_plural),
            "empty_list": self.empty_list,
            "counted": COUNTED,
            **(extra_context or {}),
        }
        return super().changelist_view(request, extra)

    def url(self, name: str, *args: Any) -> str:
        """The address of a page of this admin site."""
        return reverse(f"admin:{name}", args=args, current_app=self.admin_site.name)

    def link(self, model_name: str, pk: Any, text: Any = None) -> SafeString:
        """A link to the detail page of a row of this app."""
        url = self.url(f"agora_agent_{model_name}_change", pk)
        return format_html('<a href="{}" title="{}">{}</a>', url, pk, text or tail(pk))


def tenant_of(request: HttpRequest) -> str:
    """The tenant that the project's resolver gives this request."""
    actor = resolve_actor(request)
    return "" if actor is None else actor.tenant


def principal_of(request: HttpRequest) -> Principal:
    """The person at this door."""
    return Principal(
        request.user,  # type: ignore[arg-type]
        via="admin",
        auth_method="session",
        address=request.META.get("REMOTE_ADDR") or "",
        impersonator=impersonator_of(request),
        tenant=tenant_of(request),
    )


def note_foreign_read(request: HttpRequest, owner_id: Any, action: str, pk: Any) -> None:
    """Record that somebody reads what is not theirs."""
    if owner_id != request.user.pk:
        audit.access(action, principal=principal_of(request), subject_ref=f"{action}:{pk}")
