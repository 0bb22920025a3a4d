"""How a person is named to other people."""

from __future__ import annotations

from typing import Any


def person(user: Any, ref: str) -> dict[str, str] | None:
    """``{id, name}``; the id alone of an account that is gone; None for nobody."""
    if user is not None:
        return {"id": str(user.pk), "name": user.get_username()}
    return {"id": ref, "name": ref} if ref else None
