"""Columns that several models have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models, router

from agora_agent import codec
from agora_agent.db import KeyField

if TYPE_CHECKING:
    _TextField = models.TextField[Any, Any]
    _Manager = models.Manager[Any]
else:
    _TextField = models.TextField
    _Manager = models.Manager


class CodecField(_TextField):
    """A value in the canonical JSON of :mod:`agora_agent.codec`, kept as text.

    Not a ``JSONField``: jsonb and MySQL's JSON reorder keys, round large numbers and refuse ``\\u0000``.
    """

    if TYPE_CHECKING:
        _pyi_private_set_type: Any
        _pyi_private_get_type: Any

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        return None if value is None or value == "" else codec.decode(value)

    def get_prep_value(self, value: Any) -> str | None:
        return None if value is None else codec.encode(value)

    def value_to_string(self, obj: models.Model) -> str:
        return self.get_prep_value(self.value_from_object(obj)) or ""

    def to_python(self, value: Any) -> Any:
        return value

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "agora_agent.models.fields.CodecField", args, kwargs


class PrimaryManager(_Manager):
    """Reads from the database that is written: a decision or a checkpoint never trusts a replica."""

    def get_queryset(self) -> models.QuerySet[Any]:
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(router.db_for_write(self.model))


class ActorMixin(models.Model):
    """Who a row belongs to: the user if it still exists, and a reference that outlives it."""

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_kind = KeyField(max_length=16, default="user")
    #: The user's primary key as text. For people to read: access goes by ``actor``, never by this.
    actor_ref = KeyField(max_length=190, default="", blank=True)
    tenant = KeyField(max_length=100, default="", blank=True)

    class Meta:
        abstract = True
