"""Finding rows by the beginning of an id, by index where the database sorts ids as they are written."""

from __future__ import annotations

import uuid

from django.db import connections
from django.db.models import Q

from agora_agent.models import write_alias

_GROUPS = (8, 4, 4, 4, 12)
_SHORTEST = 4


def _digits(term: str) -> str:
    return term.replace("-", "").lower()


def is_id_beginning(term: str) -> bool:
    """True if ``term`` can be the beginning of an id."""
    digits = _digits(term)
    return _SHORTEST <= len(digits) <= 32 and not set(digits) - set("0123456789abcdef")


def ids_from(field: str, term: str) -> Q:
    """Rows whose id in ``field`` begins with ``term``."""
    digits = _digits(term)
    if len(digits) == 32:
        return Q(**{field: uuid.UUID(digits)})
    if connections[write_alias()].vendor == "mysql":
        # MariaDB sorts ids of older versions by their last group: a range would miss some.
        return Q(**{f"{field}__startswith": _hyphenated(digits)})
    return Q(**{f"{field}__range": (uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f")))})


def _hyphenated(digits: str) -> str:
    groups, rest = [], digits
    for length in _GROUPS:
        groups.append(rest[:length])
        rest = rest[length:]
    return "-".join(group for group in groups if group)
