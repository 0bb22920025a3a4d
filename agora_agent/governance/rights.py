"""What a user holds right now, as the written database has it: permissions, groups, and who else there is to ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.contrib.auth import get_backends, get_user_model
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import AbstractUser, Group, Permission
from django.core.exceptions import ValidationError
from django.db import router

from agora_agent.governance.primary import primary

VIEW_ALL_RUNS = "agora_agent.view_all_runs"
DECIDE_ANY = "agora_agent.decide_any_toolcall"
SETTLE_UNKNOWN = "agora_agent.settle_unknown"

PERMISSION, GROUP = "permission:", "group:"


@primary()
def fresh_user(pk: Any) -> AbstractUser | None:
    """The user as the database has it now, without permissions that an older object has cached."""
    if pk is None:
        return None
    users = get_user_model()
    found = users._default_manager.using(router.db_for_write(users)).filter(pk=pk).first()
    return cast("AbstractUser | None", found)


@primary()
def has_perm(user: Any, permission: str) -> bool:
    """True if the user is active and holds ``permission``. A permission that does not exist is held by nobody,
    superusers included."""
    check = getattr(user, "has_perm", None)
    return bool(
        check is not None
        and user.is_active is True
        and check(permission) is True
        and permission_exists(permission)
    )


@primary()
def permission_exists(permission: object) -> bool:
    """True if ``permission`` is ``app.codename`` of a permission that this project has."""
    if not isinstance(permission, str):
        return False
    app_label, _, codename = permission.partition(".")
    if not app_label or not codename:
        return False
    named = Permission.objects.filter(content_type__app_label=app_label, codename=codename)
    pairs = named.values_list("content_type__app_label", "codename")
    return (app_label, codename) in set(pairs)  # some databases find more than what was asked for


@primary()
def holds(user: Any, approver: str) -> bool:
    """True if the active user is one of those whom ``approver`` names: ``permission:…`` or ``group:…``."""
    if user.is_active is not True:
        return False
    if approver.startswith(PERMISSION):
        return has_perm(user, approver.removeprefix(PERMISSION))
    if approver.startswith(GROUP) and hasattr(user, "groups"):
        name = approver.removeprefix(GROUP)
        return name in set(user.groups.filter(name=name).values_list("name", flat=True))
    return False


@primary()
def approver_exists(approver: str) -> bool:
    """True if ``approver`` names a permission or a group that this project has."""
    if approver.startswith(PERMISSION):
        return permission_exists(approver.removeprefix(PERMISSION))
    return approver.startswith(GROUP) and bool(_groups(approver.removeprefix(GROUP)))


@primary()
def somebody_holds(approver: str, *, besides: Iterable[str]) -> bool:
    """True if an active user who is not one of ``besides`` may decide for ``approver``.

    A backend that cannot list its holders may have some: the call is then left to wait for one.
    """
    others = _keys(besides)
    if approver.startswith(GROUP):
        users = get_user_model()._default_manager.filter(
            is_active=True, groups__in=_groups(approver.removeprefix(GROUP))
        )
        return users.exclude(pk__in=others).exists()
    permission = approver.removeprefix(PERMISSION)
    for backend in get_backends():
        listing = getattr(backend, "with_perm", None)
        if listing is not None:
            if listing(permission, is_active=True).exclude(pk__in=others).exists():
                return True
        elif _grants_permissions(backend):
            return True
    return False


def _grants_permissions(backend: Any) -> bool:
    asked = ("has_perm", "get_all_permissions", "get_user_permissions", "get_group_permissions")
    return any(
        hasattr(backend, name) and getattr(type(backend), name, None) is not getattr(BaseBackend, name)
        for name in asked
    )


def _groups(name: str) -> list[Any]:
    return [pk for pk, found in Group.objects.filter(name=name).values_list("pk", "name") if found == name]


def _keys(refs: Iterable[str]) -> list[Any]:
    """Primary keys of those references that name users."""
    field = get_user_model()._meta.pk
    keys = []
    for ref in refs:
        kind, _, key = ref.partition(":")
        if kind != "user":
            continue
        try:
            keys.append(field.to_python(key))
        except ValidationError:
            continue
    return keys
