"""Row locks in the one order, and another try for a transaction that lost a lock to another."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import DatabaseError, connections
from django.db.models import F

from agora_agent.db import is_contention
from agora_agent.models import AgentRun, ToolCall

T = TypeVar("T")

_ATTEMPTS = 8


def lock_call(call_pk: uuid.UUID, using: str) -> ToolCall | None:
    """The call, locked after its run, in the open transaction; None if it is gone."""
    calls, runs = ToolCall.objects.using(using), AgentRun.objects.using(using)
    if not connections[using].features.has_select_for_update:
        # A transaction that begins with a read may not be able to write later: begin with a write.
        runs.filter(pk__in=calls.filter(pk=call_pk).values("run_id")).update(status=F("status"))
    run_id = calls.filter(pk=call_pk).values_list("run_id", flat=True).first()
    run = _locked(runs, using).filter(pk=run_id).first()
    call: ToolCall | None = _locked(calls, using).filter(pk=call_pk).first()
    if run is None or call is None:
        return None
    call.run = run
    return call


def retrying(body: Callable[[], T], using: str) -> T:
    """``body()``, again if the database ended its transaction for the sake of another one.

    Inside somebody else's transaction it is called once: only its owner can begin anew.
    """
    attempt = 1
    while True:
        try:
            return body()
        except DatabaseError as error:
            if attempt == _ATTEMPTS or connections[using].in_atomic_block or not is_contention(error, using):
                raise
        time.sleep(secrets.randbelow(30 * attempt) / 1000)
        attempt += 1


def _locked(rows: Any, using: str) -> Any:
    # The weaker lock where there is one: it lets others insert rows that refer to this one.
    return rows.select_for_update(no_key=connections[using].features.has_select_for_no_key_update)
