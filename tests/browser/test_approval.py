"""A refund from the chat to the approval to the answer, by two people in two browsers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Person
from tests.shop.harness import Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.processes]

WISH = "Please refund 12.50 EUR of order 1001 because the teapot arrived chipped"


def test_page_goes_on_by_itself_when_carol_approves_in_the_admin(browser: Browser, shop: Shop) -> None:
    from playwright.sync_api import expect

    alice = Person(browser, shop, "alice")
    expect(alice.page.locator("#model-notice")).to_contain_text("offline demo model")
    alice.say(WISH)
    card = alice.page.get_by_role("group", name="Waiting for approval")
    expect(card).to_contain_text("Waiting for carol.")
    expect(card).to_contain_text("Refund 12.50 EUR of order 1001 to alice")
    expect(card.get_by_role("button")).to_have_count(0)
    before = shop.rows("refund")

    carol = Person(browser, shop, "carol")
    carol.page.get_by_role("link", name="Admin").click()
    carol.page.get_by_role("link", name="Pending approvals", exact=True).first.click()
    carol.page.get_by_role("link", name=re.compile("Refund 12.50 EUR of order 1001")).click()
    body = carol.page.locator("#content")
    expect(body).to_contain_text("alice")
    expect(body).to_contain_text("the teapot arrived chipped")
    carol.page.get_by_role("button", name=re.compile("^Approve")).first.click()
    expect(carol.page.locator("ul.messagelist")).to_contain_text(re.compile("approved", re.IGNORECASE))

    expect(card).to_contain_text(re.compile("Approved by .*carol"))
    expect(alice.page.locator("#log")).to_contain_text("Done: 12.50 was refunded for order 1001.")
    expect(alice.page.get_by_role("button", name="Send")).to_be_visible()
    [refund] = [row for row in shop.rows("refund") if row not in before]
    assert (refund["amount"], refund["approved_by"]) == ("12.50", "carol")
    assert alice.errors == []
    assert carol.errors == []


def test_waiting_card_survives_a_reload_and_the_rejection_is_told(browser: Browser, shop: Shop) -> None:
    from playwright.sync_api import expect

    alice = Person(browser, shop, "alice")
    alice.say(WISH)
    card = alice.page.get_by_role("group", name="Waiting for approval")
    expect(card).to_contain_text("Waiting for carol.")
    alice.page.reload()
    expect(alice.page.locator(".mine")).to_have_text([WISH])
    expect(card).to_contain_text("Waiting for carol.")

    [waiting] = shop.call("carol", "/agent/approvals").body["results"]
    body = {"runId": waiting["runId"], "toolCallId": waiting["toolCallId"], "reason": "No photo"}
    assert shop.call("carol", "/agent/tool-call/reject", body).status == 200
    expect(card).to_contain_text("No photo")
    expect(alice.page.locator("#log")).to_contain_text("declined")
    assert alice.errors == []


def test_customer_confirms_a_note_of_their_own(browser: Browser, shop: Shop) -> None:
    from playwright.sync_api import expect

    alice = Person(browser, shop, "alice")
    alice.say("Put a note on order 1003: please ring twice <b>not bold</b>")
    card = alice.page.get_by_role("group", name="Waiting for approval")
    expect(card).to_contain_text("Waiting for you.")
    expect(card).to_contain_text("<b>not bold</b>")
    card.get_by_role("button", name="Approve").click()
    expect(alice.page.locator("#log")).to_contain_text("The note on order 1003 is sent.")
    assert [note["text"] for note in shop.rows("note")] == ["please ring twice <b>not bold</b>"]
    assert alice.errors == []


def test_stop_ends_a_waiting_run(browser: Browser, shop: Shop) -> None:
    from playwright.sync_api import expect

    alice = Person(browser, shop, "alice")
    alice.say(WISH)
    expect(alice.page.get_by_role("group", name="Waiting for approval")).to_be_visible()
    alice.page.get_by_role("button", name="Stop").click()
    expect(alice.page.locator(".end")).to_have_text("Stopped.")
    expect(alice.page.get_by_role("button", name="Send")).to_be_visible()
    assert shop.call("carol", "/agent/approvals").body["results"] == []
    assert alice.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_page_fits_and_answers_the_keyboard(browser: Browser, shop: Shop, scheme: str) -> None:
    from playwright.sync_api import expect

    phone = Person(
        browser, shop, "alice", viewport={"width": 390, "height": 800}, color_scheme=scheme, has_touch=True
    )
    phone.say(WISH)
    expect(phone.page.get_by_role("group", name="Waiting for approval")).to_be_visible()
    overflow = phone.page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert overflow == 0
    background = phone.page.evaluate("getComputedStyle(document.body).backgroundColor")
    shades = [int(part) for part in re.findall(r"\d+", background)[:3]]
    assert (max(shades) < 64) == (scheme == "dark")
    phone.page.keyboard.press("Tab")
    focused = phone.page.evaluate("document.activeElement.textContent")
    assert focused == "Stop"
