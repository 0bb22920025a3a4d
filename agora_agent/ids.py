"""Identifiers made by the server."""

from __future__ import annotations

import uuid

from uuid_utils.compat import uuid7


def new_id() -> uuid.UUID:
    """A UUIDv7 (RFC 9562): ordered by time, so that inserts land at the end of an index."""
    return uuid.UUID(bytes=uuid7().bytes)


def child_id(parent: uuid.UUID, position: str) -> uuid.UUID:
    """The id of the child that ``parent`` spawns at ``position``: the same again after a crash."""
    return uuid.uuid5(parent, position)
