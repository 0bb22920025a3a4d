"""What the suite needs from the machine. A missing service is a visible skip at a desk and a failure in CI."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from functools import lru_cache
from urllib.parse import urlsplit

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


@lru_cache
def _redis_answers() -> bool:
    parts = urlsplit(os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0")
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=2) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _missing(item: pytest.Item) -> str:
    if item.get_closest_marker("redis") and not _redis_answers():
        return "needs a service: Redis does not answer (REDIS_URL)"
    if item.get_closest_marker("browser") and not CHROMIUM:
        return "needs a service: no chromium on this machine (CHROMIUM)"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, and say so; in CI that is a failure."""
    missing = _missing(item)
    if missing:
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    if item.get_closest_marker("postgres"):
        from django.db import connection

        if connection.vendor != "postgresql":
            pytest.skip("tests PostgreSQL itself; this run is on another database")


def pytest_sessionstart(session: pytest.Session) -> None:
    """A database that was asked for and does not answer is an error, not a heap of them."""
    url = os.environ.get("DATABASE_URL")
    if not url or session.config.option.collectonly:
        return
    from django.db import Error, connection
    from pytest_django.plugin import blocking_manager_key

    try:
        # the test database itself need not be there yet
        with session.config.stash[blocking_manager_key].unblock(), connection._nodb_cursor():
            pass
    except Error as error:
        raise pytest.UsageError(f"DATABASE_URL is set, but its server does not answer: {error}") from error
    finally:
        connection.close()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser's executable, for tests marked ``browser``."""
    return CHROMIUM


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The thread that an inline start begins ends with its test, before the test's rows go."""
    maintenance = sys.modules.get("agora_agent.runners.maintenance")
    if maintenance is not None:
        maintenance.stop_maintenance()
