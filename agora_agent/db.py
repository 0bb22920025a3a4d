"""What the three databases do differently, said once: the clock, binary text, share locks."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DatabaseError, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Func
from django.utils import timezone


class DbNow(Func):
    """The database's clock in UTC, at this statement (not at the start of the transaction).

    Django's own ``Now()`` gives the session's zone on MySQL while datetimes are stored in UTC: leases would be
    judged expired as soon as they are written.
    """

    arity = 0
    output_field = DateTimeField()
    function = "STATEMENT_TIMESTAMP"

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # As Django writes datetimes, digit by digit: SQLite compares text.
        template = "REPLACE(STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW'), '.000000', '')"
        return self.as_sql(compiler, connection, template=template, **context)


def database_now(using: str) -> dt.datetime:
    """One reading of the database's clock, for values that must be known in Python. One query."""
    with transaction.get_connection(using).cursor() as cursor:
        connection = transaction.get_connection(using)
        match connection.vendor:
            case "postgresql":
                cursor.execute("SELECT STATEMENT_TIMESTAMP()")
            case "mysql":
                cursor.execute("SELECT UTC_TIMESTAMP(6)")
            case _:
                cursor.execute("SELECT STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')")
        [value] = cursor.fetchone()
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    moment: dt.datetime = value
    if settings.USE_TZ:
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    # Without time zones Django reads and writes naive datetimes: on PostgreSQL those of the session's zone.
    return timezone.make_naive(moment, _zone(using)) if moment.tzinfo else moment


def as_stored(moment: dt.datetime, using: str) -> dt.datetime:
    """``moment``, which has a zone, as the columns of this project hold it."""
    return moment if settings.USE_TZ else timezone.make_naive(moment, _zone(using))


def aware(value: dt.datetime, using: str) -> dt.datetime:
    """``value`` as a column gave it, with its zone."""
    return timezone.make_aware(value, _zone(using)) if timezone.is_naive(value) else value


def _zone(using: str) -> dt.tzinfo:
    """Of naive columns. :class:`DbNow` fills them with UTC where the database knows no zones."""
    is_local = transaction.get_connection(using).vendor == "postgresql"
    return timezone.get_default_timezone() if is_local else dt.UTC


_POSTGRESQL_CONTENTION = {"40001", "40P01", "55P03"}
_MYSQL_CONTENTION = {1020, 1205, 1213}


def is_contention(error: BaseException, using: str) -> bool:
    """True if the database gave up a transaction for the sake of another one: a deadlock, a lock that was not to be
    had, a failed serialisation. The same transaction may succeed when it is tried again."""
    if not isinstance(error, DatabaseError):
        return False
    match transaction.get_connection(using).vendor:
        case "postgresql":
            return getattr(error.__cause__, "sqlstate", None) in _POSTGRESQL_CONTENTION
        case "mysql":
            return bool(error.args) and error.args[0] in _MYSQL_CONTENTION
        case _:
            return "locked" in str(error) or "busy" in str(error)


if TYPE_CHECKING:
    _CharField = models.CharField[str, str]
else:
    _CharField = models.CharField


class KeyField(_CharField):
    """Text that is compared byte by byte: ids, keys, names, digests, references.

    MySQL and MariaDB compare text blind to case and trailing spaces unless the column says otherwise; the other
    databases need nothing.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters: dict[str, Any] = super().db_parameters(connection)
        if connection.vendor == "mysql":
            # NO PAD: under utf8mb4_bin "a" and "a " are equal
            mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "agora_agent.db.KeyField", args, kwargs
