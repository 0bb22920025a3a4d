"""Who did what, when, through which door. Append-only."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow, KeyField
from agora_agent.ids import new_id
from agora_agent.models.fields import CodecField, PrimaryManager


class AppendOnlyQuerySet(models.QuerySet[Any]):
    """Refuses every change of existing rows."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Audit entries are append-only: they are never changed or deleted.")

    update = delete = bulk_update = update_or_create = aupdate = adelete = _refuse


class AuditHead(models.Model):
    """Length and newest hash of one chain; its row lock orders the entries."""

    #: A run's id, or ``system``.
    chain = KeyField(primary_key=True, max_length=64)
    length = models.BigIntegerField(default=0)
    head = KeyField(max_length=64, default="", blank=True)

    objects = PrimaryManager()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.chain


class AuditEntry(models.Model):
    """One entry of a chain. ``hash`` is a keyed HMAC over its content and its predecessor's hash."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    chain = KeyField(max_length=64)
    number = models.BigIntegerField()
    action = KeyField(max_length=32)
    subject_ref = KeyField(max_length=190, default="", blank=True)
    via = models.CharField(max_length=16, default="", blank=True)
    content = CodecField(default=dict)
    at = models.DateTimeField()
    previous = KeyField(max_length=64, default="", blank=True)
    hash = KeyField(max_length=64)

    objects = PrimaryManager.from_queryset(AppendOnlyQuerySet)()

    class Meta:
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["chain", "number"], name="agora_audit_number")]

    def __str__(self) -> str:
        return f"{self.chain}:{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError("Audit entries are append-only: they are never changed or deleted.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Audit entries are append-only: they are never changed or deleted.")


class AccessEntry(models.Model):
    """A read of somebody else's data, or a decision that was refused. Unchained; written after the answer."""

    id = models.BigAutoField(primary_key=True)
    action = KeyField(max_length=32)
    subject_ref = KeyField(max_length=190, default="", blank=True)
    via = models.CharField(max_length=16, default="", blank=True)
    content = CodecField(default=dict)
    at = models.DateTimeField(db_default=DbNow())

    objects = PrimaryManager()

    class Meta:
        verbose_name = _("access entry")
        verbose_name_plural = _("access entries")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.pk)
