"""The chat page. It renders who is signed in; everything else it learns from the agent's own routes."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

APPROVERS = ("shop.approve_refund",)


def _who_approves() -> dict[str, list[str]]:
    """The people behind an approver permission, by name, so that a card can say whom it waits for."""
    people = get_user_model().objects
    backend = "django.contrib.auth.backends.ModelBackend"
    return {
        f"permission:{permission}": list(
            people.with_perm(permission, include_superusers=False, backend=backend)
            .order_by("username")
            .values_list("username", flat=True)
        )
        for permission in APPROVERS
    }


@require_safe
@never_cache
def chat(request: HttpRequest) -> HttpResponse:
    """The page at ``/``."""
    context: dict[str, object] = {"offline_model": settings.OFFLINE_MODEL, "model": settings.OPENAI_MODEL}
    if request.user.is_authenticated:
        context["config"] = {
            "agent": "support",
            "user": request.user.get_username(),
            "base": reverse("chat") + "agent/",
            "csrf": get_token(request),
            "approvers": _who_approves(),
        }
    return render(request, "shop/chat.html", context)
