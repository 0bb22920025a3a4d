"""Names of the people whom a waiting call waits for, as a card shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth import get_backends, get_user_model

from agora_agent.governance.primary import primary
from agora_agent.governance.principal import user_ref
from agora_agent.governance.rights import GROUP, PERMISSION

MOST_NAMES = 3


@primary()
def holder_names(approver: str, *, besides: Iterable[str]) -> list[str]:
    """User names of those whom ``approver`` names, if they are few; superusers only where nobody else holds it.

    Args:
        approver: ``permission:app.codename`` or ``group:name``.
        besides: references of people who do not count (the requesters).

    Returns:
        At most :data:`MOST_NAMES` names; none if there are more: a card then names the permission.
    """
    excluded = set(besides)
    for superusers in (False, True):
        users = [user for user in _holders(approver, superusers) if user_ref(user) not in excluded]
        if users:
            names = sorted({user.get_username() for user in users})
            return names if len(names) <= MOST_NAMES else []
    return []


def _holders(approver: str, superusers: bool) -> list[Any]:
    limit = MOST_NAMES + 10
    if approver.startswith(GROUP):
        members = get_user_model()._default_manager.filter(
            is_active=True, groups__name=approver.removeprefix(GROUP)
        )
        return list(members[:limit])
    found: list[Any] = []
    for backend in get_backends():
        listing = getattr(backend, "with_perm", None)
        if listing is not None:
            permission = approver.removeprefix(PERMISSION)
            found += listing(permission, is_active=True, include_superusers=superusers)[:limit]
    return found
