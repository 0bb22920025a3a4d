"""The engine's transactions: who may open them, what is tried again, how an own commit is recognised."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.utils import DatabaseError

from agora_agent.db import is_contention
from agora_agent.durable import faults
from agora_agent.exceptions import Fenced

logger = logging.getLogger("agora_agent.durable")
T = TypeVar("T")
ATTEMPTS = 5

_PG_LOST = {"57P01", "57P02", "57P03"}
_MYSQL_LOST = {1053, 1927, 2006, 2013, 2055, 4031}


def _mysql_code(error: BaseException) -> Any:
    return error.args[0] if error.args else None


def connection_lost(error: BaseException, using: str) -> bool:
    """True if the server, not the statement, is the matter: whether a commit happened is unknown."""
    connection = connections[using]
    match connection.vendor:
        case "postgresql":
            state = getattr(error.__cause__, "sqlstate", None)
            if state:
                return state.startswith("08") or state in _PG_LOST
            # What the server says carries a state; what has none is the client's own word on a connection that is
            # gone. Its state now tells nothing: leaving the transaction may have opened another one.
            return isinstance(error, OperationalError | InterfaceError)
        case "mysql":
            return isinstance(error, InterfaceError) or _mysql_code(error) in _MYSQL_LOST
        case _:
            return False


def is_transient(error: BaseException, using: str) -> bool:
    """True for a deadlock, a lock that was not to be had, a failed serialisation, a lost connection."""
    if not isinstance(error, DatabaseError | InterfaceError):
        return False
    return is_contention(error, using) or connection_lost(error, using)


def transact(
    work: Callable[[], T],
    *,
    using: str,
    durable: bool = True,
    recognise: Callable[[], T | None] | None = None,
) -> T:
    """``work()`` in a transaction of its own, up to five times; ``Fenced`` if the database does not come back.

    ``recognise`` looks, after a lost connection, whether the commit happened after all, and gives its result.
    """
    return _tried(
        work, using, recognise, lambda: transaction.atomic(using=using, durable=durable), leave=True
    )


def statement(work: Callable[[], T], *, using: str, recognise: Callable[[], T | None] | None = None) -> T:
    """``work()``, a single statement in autocommit, under the same rules."""
    return _tried(work, using, recognise, lambda: _Autocommit(using), leave=True)


def joined(work: Callable[[], T], *, using: str) -> T:
    """``work()`` in a transaction that may be the caller's: repeated only where it is not."""
    return _tried(work, using, None, lambda: transaction.atomic(using=using), leave=False)


class _Autocommit:
    """Nothing; a savepoint where a test case holds the transaction, so that an error leaves it usable."""

    def __init__(self, using: str) -> None:
        self._block = transaction.atomic(using=using) if connections[using].in_atomic_block else None

    def __enter__(self) -> None:
        if self._block:
            self._block.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._block:
            self._block.__exit__(*error)


def _tried(
    work: Callable[[], T],
    using: str,
    recognise: Callable[[], T | None] | None,
    block: Callable[[], Any],
    *,
    leave: bool,
) -> T:
    connection = connections[using]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with block():
                result = work()
            faults.hit("before_acknowledge")
            return result
        except (DatabaseError, InterfaceError) as error:
            if connection.in_atomic_block or not is_transient(error, using):
                raise
            lost = connection_lost(error, using)
            if lost:
                connection.close()
            logger.info("engine statement tried again", extra={"attempt": attempt, "lost": lost})
            if attempt == ATTEMPTS:
                if leave:
                    raise Fenced("the database did not answer") from error
                raise
            time.sleep(random.uniform(0.2, 1.0) * 0.02 * 2**attempt)  # noqa: S311 - spreads out, hides nothing
            if lost and recognise is not None:
                found = _recognised(recognise)
                if found is not None:
                    return found
    raise AssertionError  # pragma: no cover - the loop returns or raises


def _recognised(recognise: Callable[[], T | None]) -> T | None:
    try:
        return recognise()
    except (DatabaseError, InterfaceError):
        return None  # still down: the next attempt meets the same and counts


def refresh(using: str) -> None:
    """Give up a connection that idled through long work, before the next statement needs it."""
    connection = connections[using]
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
