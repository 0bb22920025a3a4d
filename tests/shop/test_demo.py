"""``make demo``: what it prints, what it serves, how it ends."""

from __future__ import annotations

import re
import signal
import socket

import pytest

from tests.shop.harness import Shop

pytestmark = pytest.mark.processes


def test_demo_prints_chat_admin_and_sign_ins_and_they_are_true(shop: Shop) -> None:
    chat, admin, people = shop.banner
    assert f"http://localhost:{shop.port}/" in chat
    assert f"http://localhost:{shop.port}/admin/" in admin
    for name in ("alice", "bob", "carol", "dave", "admin", "demo"):
        assert name in people
    assert shop.call(None, "/").status == 200
    assert shop.call(None, "/login").status == 200
    assert shop.call(None, "/admin/").status == 200  # after a redirect to its own sign-in


def test_admin_css_is_served_with_debug_off(shop: Shop) -> None:
    sheet = shop.call(None, "/static/admin/css/base.css")
    assert sheet.status == 200
    assert sheet.headers["Content-Type"].startswith("text/css")
    missing = shop.call(None, "/no-such-page")
    assert missing.status == 404
    assert "DEBUG" not in missing.body


def test_page_holds_no_inline_script_or_style(shop: Shop) -> None:
    page = shop.call(None, "/login").body
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


def test_taken_port_is_named_with_a_way_out(own_shop: Shop) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        own_shop.port = holder.getsockname()[1]
        process = own_shop.process = own_shop.spawn()
        out, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert f"Port {own_shop.port}" in error
    assert "make demo PORT=" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_demo_stops_all_that_it_started(own_shop: Shop, number: signal.Signals) -> None:
    own_shop.environment["AGORA_DISPATCHER"] = "worker"
    own_shop.start()
    assert own_shop.process is not None
    own_shop.process.send_signal(number)
    assert own_shop.process.wait(30) == 0
    assert not own_shop.is_listening()
    # The pipes close only when the last process that holds them has ended.
    assert own_shop.process.stdout is not None
    assert own_shop.process.stdout.read() == ""


def test_demo_starts_again_on_the_same_database_after_kill_9(own_shop: Shop) -> None:
    own_shop.start()
    waiting = own_shop.say(
        "alice", "Please refund 12.50 EUR of order 1001 because it is chipped", until=("approval",)
    )
    own_shop.kill()
    own_shop.start()
    [row] = own_shop.call("carol", "/agent/approvals").body["results"]
    assert row["toolCallId"] == waiting[-1].data["id"]
    assert own_shop.stop() == 0


def test_seeding_twice_changes_nothing(own_shop: Shop) -> None:
    own_shop.manage("seed_shop", "--migrate")
    before = own_shop.manage("dumpdata", "auth.user", "shop")
    own_shop.manage("seed_shop", "--migrate")
    assert own_shop.manage("dumpdata", "auth.user", "shop") == before
