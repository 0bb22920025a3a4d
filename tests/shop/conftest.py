"""A running shop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shop.harness import Shop, fresh_database


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One seeded shop that the tests of this package share: each brings its own orders to refund from."""
    folder: Path = tmp_path_factory.mktemp("shop")
    with fresh_database(folder) as url:
        running = Shop(url, folder)
        try:
            running.start()
            yield running
        finally:
            running.close()


@pytest.fixture
def own_shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop of this test's own, not started."""
    with fresh_database(tmp_path) as url:
        running = Shop(url, tmp_path)
        try:
            yield running
        finally:
            running.close()
