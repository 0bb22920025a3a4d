"""A running shop and a real Chromium, one context for each person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.shop.harness import Shop, fresh_database

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One seeded shop for all; each test begins a conversation of its own."""
    folder: Path = tmp_path_factory.mktemp("browser-shop")
    with fresh_database(folder) as url:
        running = Shop(url, folder)
        try:
            running.start()
            yield running
        finally:
            running.close()


@pytest.fixture(scope="package")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(autouse=True)
def nothing_waits_at_the_end(shop: Shop) -> Iterator[None]:
    """Cancel what a test left waiting, so that the next finds only its own."""
    yield
    for row in shop.call("carol", "/agent/approvals").body["results"]:
        shop.call(row["requester"]["name"], f"/agent/chat/{row['runId']}/cancel", {})


class Person:
    """Somebody at a browser of their own."""

    def __init__(self, browser: Browser, shop: Shop, name: str, **options: Any) -> None:
        self.context = browser.new_context(base_url=shop.base, **options)
        self.context.set_default_timeout(20_000)
        self.page: Page = self.context.new_page()
        #: What the page threw or logged as an error.
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda entry: self.errors.append(entry.text) if entry.type == "error" else None
        )
        self.page.goto("/login")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill("demo")
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/")
        # The page takes up the last conversation, which may be another test's.
        self.page.get_by_role("button", name="New conversation").click()

    def say(self, message: str) -> None:
        """Send a chat message with the keyboard."""
        box = self.page.get_by_label("Your message")
        box.fill(message)
        box.press("Enter")
