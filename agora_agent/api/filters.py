"""Query parameters that narrow a list."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.utils.dateparse import parse_date, parse_datetime

from agora_agent.codec import clean_text
from agora_agent.db import as_stored
from agora_agent.exceptions import InvalidInput
from agora_agent.models import write_alias

MAX_TEXT = 200


def text(params: Any, name: str) -> str:
    """A word to look for; empty without one."""
    return clean_text(params.get(name) or "")[:MAX_TEXT]


def row_id(params: Any, name: str) -> uuid.UUID | None:
    """The id of a row. A malformed one names nothing, as an unknown one does.

    Raises:
        InvalidInput: it is no id.
    """
    value = params.get(name)
    if not value:
        return None
    try:
        return uuid.UUID(value)
    except ValueError:
        raise InvalidInput(errors={name: ["Not an id."]}) from None


def instant(params: Any, name: str) -> dt.datetime | None:
    """A moment in ISO-8601, or a day, which is its first moment; without a zone it is UTC. As columns hold it.

    Raises:
        InvalidInput: it is neither.
    """
    value = params.get(name)
    if not value:
        return None
    try:
        moment = parse_datetime(value)
        if moment is None:
            day = parse_date(value)
            moment = dt.datetime.combine(day, dt.time()) if day else None
        if moment is None:
            raise ValueError(value)
        moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
        return as_stored(moment, write_alias())
    except (OverflowError, ValueError):
        raise InvalidInput(errors={name: ["Not a time in ISO-8601."]}) from None
