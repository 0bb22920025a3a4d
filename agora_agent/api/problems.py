"""Every refusal as ``application/problem+json`` (RFC 9457) with a stable ``code``."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core import signals
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404
from rest_framework import exceptions
from rest_framework.renderers import BaseRenderer
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from agora_agent.exceptions import AgoraError, Busy, Forbidden, InvalidInput, NotVisible, Unauthenticated
from agora_agent.streaming.wire import dumps, to_wire

logger = logging.getLogger("agora_agent.api")

PROBLEM_JSON = "application/problem+json"

_BUSY_RETRY_SECONDS = 2


class TooLarge(AgoraError):
    """The body is larger than this server takes."""

    code = "too_large"
    status_code = 413


class NotJson(AgoraError):
    """Send application/json."""

    code = "unsupported_media_type"
    status_code = 415


class MethodNotAllowed(AgoraError):
    """This address does not take this method."""

    code = "method_not_allowed"
    status_code = 405


class Throttled(AgoraError):
    """Too many requests."""

    code = "throttled"
    status_code = 429


class JSONRenderer(BaseRenderer):
    """Strict JSON: no NaN, large integers as text, nothing that a parser could take for a line end."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any | None = None
    ) -> bytes:
        return b"" if data is None else dumps(to_wire(data)).encode("utf-8", "replace")


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """The exception handler of our views; the project's own handler is left alone."""
    set_rollback()
    known = _known(error)
    if known is None:
        request = context.get("request")
        # As for any error that no view handles: the project's error reporting hears of it.
        signals.got_request_exception.send(sender=type(context.get("view")), request=request)
        logger.error("a request failed", exc_info=error)
        known = AgoraError(f"{type(error).__name__}: {error}" if settings.DEBUG else _OURS)
    return _response(known, _headers(error, known))


_OURS = "Something went wrong on our side."


def _known(error: Exception) -> AgoraError | None:
    """The error in the words of the wire contract; None for what nobody expected."""
    match error:
        case AgoraError():
            return error if error.status_code < 500 or error.status_code in (501, 503) else None
        case exceptions.NotAuthenticated():
            return Unauthenticated()
        case exceptions.AuthenticationFailed():
            return Unauthenticated(str(error.detail))
        case exceptions.MethodNotAllowed():
            return MethodNotAllowed()
        case exceptions.UnsupportedMediaType():
            return NotJson()
        case exceptions.Throttled():
            return Throttled()
        case exceptions.ValidationError():
            return InvalidInput(errors=_per_field(error.detail))
        case exceptions.PermissionDenied():
            return Forbidden(str(error.detail))
        case exceptions.NotFound() | Http404():
            return NotVisible()
        case exceptions.APIException() if error.status_code < 500:
            return _with_status(InvalidInput(str(error.detail)), error.status_code)
        case PermissionDenied():
            return Forbidden()
        case RequestDataTooBig():
            return TooLarge()
        case SuspiciousOperation():
            return InvalidInput()
    return None


def _with_status(error: AgoraError, status_code: int) -> AgoraError:
    error.status_code = status_code
    return error


def _per_field(detail: Any, path: str = "") -> dict[str, list[str]]:
    """``{"a.b": ["message"]}`` from a serializer's nested errors."""
    if isinstance(detail, dict):
        return {
            key: messages
            for name, inner in detail.items()
            for key, messages in _per_field(inner, f"{path}.{name}" if path else str(name)).items()
        }
    if isinstance(detail, list) and all(isinstance(item, str) for item in detail):
        return {path or api_settings.NON_FIELD_ERRORS_KEY: [str(item) for item in detail]}
    if isinstance(detail, list):
        return _per_field({str(number): item for number, item in enumerate(detail)}, path)
    return {path or api_settings.NON_FIELD_ERRORS_KEY: [str(detail)]}


def _headers(error: Exception, known: AgoraError) -> dict[str, str]:
    headers = {}
    if auth_header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(auth_header)
    wait = known.details.pop("retryAfter", None) or getattr(error, "wait", None)
    if wait is None and isinstance(known, Busy):
        wait = _BUSY_RETRY_SECONDS
    if wait is not None:
        headers["Retry-After"] = str(math.ceil(wait))
    return headers


def _response(error: AgoraError, headers: dict[str, str]) -> Response:
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(error.status_code).phrase,
        "status": error.status_code,
        "detail": error.message,
        "code": error.code,
    }
    return Response(
        {**error.details, **problem}, status=error.status_code, headers=headers, content_type=PROBLEM_JSON
    )
