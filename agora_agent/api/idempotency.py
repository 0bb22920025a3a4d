"""``Idempotency-Key``: the same send of the same actor, made again, gives the run that it made at first."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.crypto import constant_time_compare
from rest_framework.request import Request

from agora_agent import codec
from agora_agent.db import database_now
from agora_agent.exceptions import AgoraError, IdempotencyConflict, InvalidInput
from agora_agent.governance.actors import Actor
from agora_agent.governance.locking import retrying
from agora_agent.models import IdempotencyKey, write_alias

_KEY = re.compile(r"[\x20-\x7e]{1,255}")


def key_of(request: Request) -> str | None:
    """The request's key; None without one.

    Raises:
        InvalidInput: it is longer than 255 characters, or not printable ASCII.
    """
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidInput("An Idempotency-Key is 1 to 255 printable ASCII characters.")
    return key


def start_once(
    key: str | None, actor: Actor, route: str, body: dict[str, Any], start: Callable[[], uuid.UUID]
) -> uuid.UUID:
    """``start()`` in one transaction with the key; with a key that is known, the run of the first time.

    Raises:
        IdempotencyConflict: the key was used with another body.
    """
    using = write_alias()
    sent = _Sent(key, actor, route, body) if key is not None else None

    def attempt() -> uuid.UUID:
        with transaction.atomic(using=using):
            known = sent.find(using) if sent else None
            if known is not None:
                return known
            run_id = start()
            if sent:
                sent.store(run_id, using)
            return run_id

    try:
        return retrying(attempt, using)
    except (AgoraError, IntegrityError):
        # The same send at the same moment: the other one has taken the thread, the last place or the key.
        known = sent.find(using) if sent else None
        if known is None:
            raise
        return known


class _Sent:
    def __init__(self, key: str, actor: Actor, route: str, body: dict[str, Any]) -> None:
        self._digest = _sha256([actor.tenant, actor.kind, str(actor.user.pk), route, key])
        self._body_digest = _sha256(body)

    def find(self, using: str) -> uuid.UUID | None:
        row = IdempotencyKey.objects.using(using).filter(pk=self._digest).first()
        if row is None:
            return None
        if row.created_at <= database_now(using) - IdempotencyKey.KEPT:
            IdempotencyKey.objects.using(using).filter(pk=row.pk, created_at=row.created_at).delete()
            return None
        if not constant_time_compare(row.body_digest, self._body_digest):
            raise IdempotencyConflict
        run_id: uuid.UUID = row.run_id
        return run_id

    def store(self, run_id: uuid.UUID, using: str) -> None:
        IdempotencyKey.objects.using(using).create(
            pk=self._digest, body_digest=self._body_digest, run_id=run_id
        )


def _sha256(value: Any) -> str:
    try:
        return hashlib.sha256(codec.canonical(value)).hexdigest()
    except codec.Unencodable as error:
        raise InvalidInput(str(error)) from error
