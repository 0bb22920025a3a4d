"""The people of the tests."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType

from agora_agent.governance.principal import Principal


def person(name: str, *permissions: str, **fields: Any) -> Any:
    """A user who holds these permissions, made where they do not exist."""
    user = get_user_model().objects.create_user(name, password="demo", **fields)
    for permission in permissions:
        app_label, _, codename = permission.partition(".")
        held = Permission.objects.filter(content_type__app_label=app_label, codename=codename).first()
        if held is None:
            kind, _ = ContentType.objects.get_or_create(app_label=app_label, model="shelf")
            held = Permission.objects.create(content_type=kind, codename=codename, name=codename)
        user.user_permissions.add(held)
    return user


def principal(user: Any, via: str = "python") -> Principal:
    """The user at a door."""
    return Principal(user=user, via=via)  # type: ignore[arg-type]
