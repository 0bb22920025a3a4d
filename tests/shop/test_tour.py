"""``make tour``: everything that it shows is true, or it says so and fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shop.harness import PROJECT, Shop

pytestmark = pytest.mark.processes


def tour(shop: Shop) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROJECT / "tour.py")],
        env=shop.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def test_tour_shows_a_turn_through_kill_9(own_shop: Shop) -> None:
    done = tour(own_shop)
    assert done.returncode == 0, done.stdout + done.stderr
    for claim in (
        "the run is parked on the refund",
        "bob cannot see that there is anything to approve (404)",
        "alice may not approve her own refund (403)",
        "no gap, no repeat",
        "there is exactly one refund row",
        "persist:run:end",
        "All of it is true.",
    ):
        assert claim in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "Traceback" not in done.stderr


def test_tour_fails_where_what_it_shows_is_not_so(own_shop: Shop) -> None:
    own_shop.manage("seed_shop", "--migrate")
    forget = "from django.contrib.auth.models import User; User.objects.get(username='carol').user_permissions.clear()"
    own_shop.manage("shell", "-c", forget)
    done = tour(own_shop)
    assert done.returncode == 1
    assert "NOT SO: carol finds it among her approvals" in done.stderr
    assert "All of it is true." not in done.stdout
