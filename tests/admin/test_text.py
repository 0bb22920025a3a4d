from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from agora_agent.db import database_now
from agora_agent.templatetags.agora_admin import ago, exact, readable, took, until, visible, when


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x85", "\xad", "\u200b", "\u200d", "\u202e", "\u2028", "\u2066",
                                  "\ufeff", "\u3164", "\U000e0041", "\ud800", "\r"])  # fmt: skip
def test_a_character_that_cannot_be_seen_is_spelled_out(char):
    shown = visible(f"a{char}b")
    assert char not in shown
    assert f"U+{ord(char):04X}" in shown


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "Grüße, 你好, שלום, 👍🏽 ✈️", "a\xa0b"])
def test_ordinary_text_of_any_script_stays_as_it_is(text):
    assert visible(text) == text


def test_markup_is_escaped_with_and_without_hidden_characters():
    assert visible("<b>&") == "&lt;b&gt;&amp;"
    assert visible("<b>\u200b").startswith("&lt;b&gt;<span")


@pytest.mark.parametrize(
    ("value", "shown"),
    [("", '""'), (None, "null"), (True, "true"), (12, "12"), (Decimal("12.50"), "12.50"), ("null", "null"),
     (dt.date(2026, 3, 1), "2026-03-01"), ([], "[]"), ({"a": Decimal("1.0")}, "1.0")],
)  # fmt: skip
def test_an_argument_reads_as_what_it_is(value, shown):
    assert shown.replace('"', "&quot;") in readable(value)


def test_text_and_literals_of_the_same_letters_look_different():
    assert readable("null") != readable(None)
    assert readable("12") != readable(12)


@pytest.mark.django_db
def test_a_time_without_a_zone_is_shown_too(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"
    assert "2026" in when(dt.datetime(2026, 3, 1, 12, 0))  # noqa: DTZ001
    now = database_now("default")
    assert ">0\u00a0minutes ago<".replace("\u00a0", " ") in ago(now)
    assert ">in 2 minutes" in until(now + dt.timedelta(minutes=2, seconds=30))
    exact_utc = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:")
    assert exact_utc in when(now)


def test_durations_have_units():
    start = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    assert took(start, start + dt.timedelta(milliseconds=5)) == "5 ms"
    assert took(start, start + dt.timedelta(seconds=70)) == "70.0 s"
    assert took(start, start + dt.timedelta(hours=2)) == "2 hours"
    assert took(None, start) == "—"


def test_decimals_lose_their_padding_only():
    assert exact(Decimal("0.000231000")) == "0.000231"
    assert exact(Decimal("100.000")) == "100"
