"""Refuses changes that another site's page asks for, whatever the authentication."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.utils.http import is_same_domain

from agora_agent.exceptions import Forbidden

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def require_own_origin(request: HttpRequest) -> None:
    """Check ``Origin`` and ``Sec-Fetch-Site``. Origins in ``CSRF_TRUSTED_ORIGINS`` count as our own.

    Raises:
        Forbidden: another site's page sent this.
    """
    origin = request.headers.get("Origin")
    if origin is not None:
        if not _is_own(request, origin) and not _is_trusted(origin):
            raise Forbidden("Another site's page may not do this.")
    elif request.headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site":
        raise Forbidden("Another site's page may not do this.")


def _is_own(request: HttpRequest, origin: str) -> bool:
    return origin == f"{'https' if request.is_secure() else 'http'}://{request.get_host()}"


def _is_trusted(origin: str) -> bool:
    try:
        given = urlsplit(origin)
    except ValueError:
        return False
    for trusted in settings.CSRF_TRUSTED_ORIGINS:
        scheme, _, host = trusted.partition("://")
        if trusted == origin:
            return True
        if host.startswith("*.") and given.scheme == scheme and is_same_domain(given.netloc, host[1:]):
            return True
    return False
