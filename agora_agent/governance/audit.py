"""The record: chained entries for what was done, unchained ones for what was refused or looked at."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import ExpressionWrapper, F, TextField
from django.utils.crypto import constant_time_compare, salted_hmac

from agora_agent import codec
from agora_agent.db import database_now
from agora_agent.governance.principal import Principal, user_ref
from agora_agent.models import AccessEntry, AuditEntry, AuditHead, Decision, write_alias

logger = logging.getLogger("agora_agent.governance")

#: The chain of everything that belongs to no run.
SYSTEM = "system"

_SALT = "agora_agent.governance.audit"


def record(
    chain: uuid.UUID | None,
    action: str,
    *,
    principal: Principal | None = None,
    subject_ref: str = "",
    via: str = "",
    content: dict[str, Any] | None = None,
) -> AuditEntry:
    """Append an entry in the open transaction, so that it stands or falls with what it tells about.

    Args:
        chain: the run's id; None for the system chain.
        action: what was done.
        principal: who did it, if a person did.
        subject_ref: what it was done to, as ``kind:id``.
        via: the door; that of ``principal`` without it.
        content: ids and digests. Never arguments, reasons or other text of people.
    """
    using = write_alias()
    if not transaction.get_connection(using).in_atomic_block:
        raise transaction.TransactionManagementError(
            "Audit entries are written inside the transaction of the change that they tell about."
        )
    name = SYSTEM if chain is None else str(chain)
    heads = AuditHead.objects.using(using).filter(chain=name)
    if not heads.update(length=F("length") + 1):
        try:
            with transaction.atomic(using=using):
                AuditHead.objects.using(using).create(chain=name)
        except IntegrityError:
            pass  # somebody else has made it meanwhile
        heads.update(length=F("length") + 1)
    number, previous = heads.values_list("length", "head").get()
    entry = AuditEntry(
        chain=name,
        number=number,
        action=action,
        subject_ref=subject_ref,
        via=via or (principal.via if principal else ""),
        content=_content(principal, content),
        at=database_now(using),
        previous=previous,
    )
    entry.hash = _seal(entry, settings.SECRET_KEY)
    entry.save(using=using, force_insert=True)
    heads.update(head=entry.hash)
    return entry


def access(
    action: str,
    *,
    principal: Principal | None = None,
    subject_ref: str = "",
    via: str = "",
    content: dict[str, Any] | None = None,
) -> None:
    """Note a refused decision or a look at somebody else's data, after the answer is known. Never raises."""
    try:
        using = write_alias()
        with transaction.atomic(using=using):
            AccessEntry.objects.using(using).create(
                action=action,
                subject_ref=codec.clean_text(subject_ref)[:190],
                via=via or (principal.via if principal else ""),
                content=_content(principal, content),
            )
    except DatabaseError:
        logger.exception("An access entry could not be written.")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with an entry, or with a stretch of a chain."""

    chain: str
    number: int
    kind: Literal["altered", "missing", "extra", "cut"]
    detail: str

    def __str__(self) -> str:
        return f"{self.chain} #{self.number}: {self.kind}: {self.detail}"


def verify(chain: uuid.UUID | str | None = None) -> list[Problem]:
    """What does not fit in one chain, or in all of them: nothing if the record is as it was written.

    An empty answer does not prove that a whole run was not removed together with its decisions and its chain.
    """
    if chain is not None:
        return list(_problems(str(chain)))
    names = set(AuditHead.objects.values_list("chain", flat=True))
    names.update(AuditEntry.objects.order_by().values_list("chain", flat=True).distinct())
    decided = Decision.objects.order_by().values_list("tool_call__run_id", flat=True).distinct()
    names.update(str(run_id) for run_id in decided)
    return [problem for name in sorted(names) for problem in _problems(name)]


def _problems(chain: str) -> Iterator[Problem]:
    length, head = _head(chain)
    expected, previous, told = 1, "", {}
    for entry in _entries(chain):
        if entry.number > length and entry.number > _head(chain)[0]:
            yield Problem(chain, entry.number, "extra", f"the chain ends at {length}")
            continue
        if entry.number < expected:
            yield Problem(chain, entry.number, "extra", "numbers begin at 1")
            continue
        if entry.number > expected:
            yield Problem(chain, expected, "missing", f"entries {expected} to {entry.number - 1} are gone")
        elif entry.previous != previous:
            yield Problem(chain, entry.number, "altered", "it does not follow the entry before it")
        if not any(constant_time_compare(entry.hash, _seal(entry, key)) for key in _keys()):
            yield Problem(chain, entry.number, "altered", "its content is not what was written")
        elif entry.number == length and entry.hash != head:
            yield Problem(chain, entry.number, "altered", "it is not the entry that the chain ended with")
        expected, previous = entry.number + 1, entry.hash
        if {"decision", "verdict", "digest"} <= entry.content.keys():
            told[entry.content["decision"]] = entry
    if expected <= length:
        yield Problem(chain, expected, "cut", f"entries {expected} to {length} are gone")
    yield from _untold(chain, told)


def _entries(chain: str) -> Iterator[AuditEntry]:
    """In order. Content that is no JSON any more is read as nothing, so that its entry is named."""
    stored = ExpressionWrapper(F("content"), output_field=TextField())
    entries = (
        AuditEntry.objects.filter(chain=chain).order_by("number").defer("content").annotate(stored=stored)
    )
    for entry in entries.iterator(chunk_size=500):
        try:
            content = codec.decode(entry.stored)
        except ValueError:
            content = {}
        entry.content = content if isinstance(content, dict) else {}
        yield entry


def _untold(chain: str, told: dict[str, AuditEntry]) -> Iterator[Problem]:
    """Decisions that the chain does not know, or knows otherwise."""
    if chain == SYSTEM:
        return
    for decision in Decision.objects.filter(tool_call__run_id=chain).order_by("created_at"):
        entry = told.get(str(decision.pk))
        if entry is None:
            yield Problem(chain, 0, "missing", f"no entry tells of decision {decision.pk}")
            continue
        written = (entry.content.get("by", ""), entry.content["verdict"], entry.content["digest"])
        if written != (decision.principal_ref, decision.verdict, decision.digest):
            yield Problem(chain, entry.number, "altered", f"decision {decision.pk} is not what it tells")


def _head(chain: str) -> tuple[int, str]:
    return AuditHead.objects.filter(chain=chain).values_list("length", "head").first() or (0, "")


def _content(principal: Principal | None, content: dict[str, Any] | None) -> Any:
    if principal is None:
        return content or {}
    who = {"by": principal.ref, "auth_method": principal.auth_method, "address": principal.address}
    if principal.impersonator is not None:
        who["impersonator"] = user_ref(principal.impersonator)
    return {**(content or {}), **who}


def _keys() -> list[str | bytes]:
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


def _seal(entry: AuditEntry, key: str | bytes) -> str:
    text = codec.encode(
        [
            entry.chain,
            entry.number,
            entry.action,
            entry.subject_ref,
            entry.via,
            entry.content,
            entry.at.astimezone(dt.UTC),
            entry.previous,
        ]
    )
    return salted_hmac(_SALT, text, secret=key, algorithm="sha256").hexdigest()
