"""Pages by cursor: a place in the order, so that rows which arrive meanwhile neither repeat nor hide others."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import uuid
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Model, Q, QuerySet

from agora_agent.exceptions import InvalidInput

DEFAULT_SIZE = 50
MAX_SIZE = 200


class Page(NamedTuple):
    """Rows and where the next page begins; None on the last."""

    rows: list[Any]
    next: str | None


def paginate(rows: QuerySet[Any], params: Any, *, by: str = "created_at", newest_first: bool = True) -> Page:
    """One page of ``rows``, ordered by the time column ``by``, then by id.

    Args:
        rows: everything that the reader may see.
        params: the query string: ``cursor``, ``limit``.
        by: a column that is never null.
        newest_first: the direction.

    Raises:
        InvalidInput: a cursor or limit that is none.
    """
    size = _size(params.get("limit"))
    cursor = params.get("cursor")
    if cursor:
        at, key = _decode(cursor)
        beyond = "lt" if newest_first else "gt"
        rows = rows.filter(Q(**{f"{by}__{beyond}": at}) | Q(**{by: at, f"id__{beyond}": key}))
    sign = "-" if newest_first else ""
    found = list(rows.order_by(f"{sign}{by}", f"{sign}id")[: size + 1])
    page = found[:size]
    return Page(page, _encode(page[-1], by) if len(found) > size else None)


def _size(value: str | None) -> int:
    if value is None:
        return DEFAULT_SIZE
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise InvalidInput(errors={"limit": ["A whole number from 1."]})
    return min(int(value), MAX_SIZE)


def _encode(row: Model, by: str) -> str:
    place = json.dumps([getattr(row, by).isoformat(), str(row.pk)])
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[dt.datetime, uuid.UUID]:
    try:
        at, key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        moment = dt.datetime.fromisoformat(at)
        if (moment.tzinfo is not None) is not settings.USE_TZ:  # a cursor has the value of a column
            raise ValueError(at)
        return moment.astimezone(dt.UTC) if moment.tzinfo else moment, uuid.UUID(key)
    except (OverflowError, ValueError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise InvalidInput(errors={"cursor": ["Not a cursor of ours."]}) from None
