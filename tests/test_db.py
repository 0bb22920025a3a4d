"""What counts as a transaction that lost to another one: the same word for the engine and for decisions."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connection, transaction

from agora_agent.db import is_contention
from agora_agent.durable.transactions import is_transient
from agora_agent.governance.locking import retrying


def lost(code: Any) -> DatabaseError:
    """The error as this database's driver tells it."""
    if connection.vendor == "mysql":
        return OperationalError(code, "the server's words")
    error = OperationalError("the server's words" if connection.vendor == "postgresql" else str(code))
    if connection.vendor == "postgresql":
        import psycopg

        error.__cause__ = psycopg.errors.lookup(code)()
    return error


LOST = {
    "postgresql": ["40001", "40P01", "55P03"],
    "mysql": [1020, 1205, 1213],
    "sqlite": ["database is locked", "database table is locked: x", "database is busy"],
}
OTHERWISE = {
    "postgresql": ["23505", "42P01", "57014"],
    "mysql": [1062, 1146, 3024],
    "sqlite": ["no such table: x", "disk I/O error"],
}


def counted(error: BaseException, tries: list[int]) -> Any:
    """Fails twice, then not."""

    def body() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise error
        return "done"

    return body


@pytest.mark.parametrize("code", range(3))
def test_what_lost_a_lock_is_tried_again_by_everybody(transactional_db: None, code: int) -> None:
    error = lost(LOST[connection.vendor][code])
    assert is_contention(error, "default")
    assert is_transient(error, "default")
    assert retrying(counted(error, []), "default") == "done"
    tries: list[int] = []
    with pytest.raises(OperationalError), transaction.atomic():  # only who began it can begin anew
        retrying(counted(error, tries), "default")
    assert tries == [1]


def test_no_other_error_is(transactional_db: None) -> None:
    others = [lost(code) for code in OTHERWISE[connection.vendor]]
    for error in [*others, IntegrityError("x"), InterfaceError("x"), ValueError("locked")]:
        assert not is_contention(error, "default")
        tries: list[int] = []
        with pytest.raises(type(error)):
            retrying(counted(error, tries), "default")
        assert tries == [1]
