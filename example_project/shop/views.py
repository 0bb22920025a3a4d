"""The chat page. It renders who is signed in; everything else it learns from the agent's own routes."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


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
        }
    return render(request, "shop/chat.html", context)
