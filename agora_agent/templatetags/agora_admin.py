"""Filters and tags of the admin pages: untrusted text made visible, times, status pills, JSON."""

from __future__ import annotations

import datetime as dt
import json
import unicodedata
import uuid
from decimal import Decimal
from typing import Any

from django import template
from django.conf import settings
from django.utils import formats, timezone
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.timesince import timesince
from django.utils.translation import gettext as _

from agora_agent import db
from agora_agent.models import write_alias

register = template.Library()

NOTHING = SafeString("—")

#: Blank or joining characters that Unicode does not file under "format": fillers, the grapheme joiner, an
#: empty Braille cell, and variation selectors (but for the two that choose how an emoji looks).
_INVISIBLE = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
_SELECTORS = (range(0xFE00, 0xFE0E), range(0xE0100, 0xE01F0))
#: The longest text that a page shows of one stored value that nobody decides about.
SHOWN_CHARACTERS = 20_000


def _hidden(char: str) -> bool:
    point = ord(char)
    if char in "\n\t":
        return False
    if point < 0x20 or 0x7F <= point < 0xA0:
        return True
    if point < 0x250 and point != 0xAD:
        return False
    return (
        unicodedata.category(char) in {"Cf", "Zl", "Zp", "Cs", "Co"}
        or point in _INVISIBLE
        or any(point in span for span in _SELECTORS)
    )


@register.filter
def visible(text: Any) -> SafeString:
    """``text`` escaped, with every character that is invisible or turns the text around spelled out."""
    source = str(text).replace("\r\n", "\n")
    if not any(map(_hidden, source)):
        return conditional_escape(str.__str__(source))
    parts: list[str] = []
    for char in source:
        if _hidden(char):
            name = unicodedata.name(char, _("control character"))
            code = f"U+{ord(char):04X}"
            parts.append(format_html('<span class="agora-codepoint" title="{}">{}</span>', name, code))
        else:
            parts.append(conditional_escape(char))
    return mark_safe("".join(parts))  # noqa: S308  every part above is escaped


def _plain(value: Any) -> str:
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return str(value)


def as_json(value: Any) -> str:
    """``value`` as JSON for people; decimals, dates and ids as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


@register.filter
def readable(value: Any) -> SafeString:
    """One argument: text as it is, everything else as JSON."""
    if isinstance(value, str) and value != "":
        return format_html('<span class="agora-text" dir="auto">{}</span>', visible(value))
    if isinstance(value, dict | list | tuple) and value:
        return format_html('<pre class="agora-json">{}</pre>', visible(as_json(value)))
    literal = as_json(value) if not isinstance(value, dt.date | uuid.UUID) else _plain(value)
    return format_html("<code>{}</code>", visible(literal.strip('"') if value != "" else literal))


def _cut(text: str, limit: int) -> SafeString:
    if len(text) <= limit:
        return visible(text)
    note = _("shortened: %(shown)s of %(all)s characters are shown") % {
        "shown": formats.number_format(limit, force_grouping=True),
        "all": formats.number_format(len(text), force_grouping=True),
    }
    return format_html('{}<span class="agora-cut">… {}</span>', visible(text[:limit]), note)


@register.filter
def json_block(value: Any) -> SafeString:
    """``value`` as an indented JSON block, in full."""
    return format_html('<pre class="agora-json">{}</pre>', visible(as_json(value)))


@register.filter
def shortened(value: Any) -> SafeString:
    """A stored value of any size: text as text, the rest as JSON, cut where a page would become unusable."""
    if isinstance(value, str):
        return format_html('<div class="agora-words" dir="auto">{}</div>', _cut(value, SHOWN_CHARACTERS))
    return format_html('<pre class="agora-json">{}</pre>', _cut(as_json(value), SHOWN_CHARACTERS))


def aware(value: dt.datetime) -> dt.datetime:
    """The value of a column with its zone, also where the project works without zones."""
    return db.aware(value, write_alias())


@register.filter
def when(value: dt.datetime | None) -> SafeString:
    """A local time, with the exact UTC on hover."""
    if value is None:
        return NOTHING
    moment = aware(value)
    local = timezone.localtime(moment)
    utc = moment.astimezone(dt.UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(),
        utc.strftime("%Y-%m-%d %H:%M:%S.%f"),
        formats.date_format(local, "DATETIME_FORMAT"),
    )


@register.filter
def ago(value: dt.datetime | None) -> SafeString:
    """How long ago, in the largest unit that says something, with the exact UTC on hover."""
    if value is None:
        return NOTHING
    moment = aware(value)
    return _duration(moment, timesince(moment, dt.datetime.now(dt.UTC), depth=1), _("%(time)s ago"))


@register.filter
def until(value: dt.datetime | None) -> SafeString:
    """How long from now, or that it is over, with the exact UTC on hover."""
    if value is None:
        return NOTHING
    moment = aware(value)
    now = dt.datetime.now(dt.UTC)
    if moment <= now:
        return _duration(moment, "", _("over"))
    return _duration(moment, timesince(now, moment, depth=2), _("in %(time)s"))


def _duration(value: dt.datetime, words: str, pattern: str) -> SafeString:
    utc = value.astimezone(dt.UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(),
        utc.strftime("%Y-%m-%d %H:%M:%S"),
        (pattern % {"time": words}).replace("\xa0", " "),
    )


@register.simple_tag
def took(start: dt.datetime | None, end: dt.datetime | None) -> str:
    """The time between two moments, with its unit."""
    if start is None or end is None:
        return NOTHING
    seconds = max((end - start).total_seconds(), 0.0)
    if seconds < 1:
        return _("%(n)s ms") % {"n": round(seconds * 1000)}
    if seconds < 120:
        return _("%(n)s s") % {"n": formats.number_format(seconds, 1)}
    return timesince(start, end, depth=2).replace("\xa0", " ")


@register.filter
def short_id(value: Any) -> str:
    """The beginning and the end of an id: the beginning sorts, the end tells apart."""
    text = str(value)
    return f"{text[:8]}…{text[-6:]}" if len(text) > 20 else text


@register.filter
def tail(value: Any) -> SafeString:
    """The end of an id, for lists: the beginnings of ids made in one hour are all alike."""
    text = str(value)
    shown = f"…{text[-6:]}" if len(text) > 20 else text
    return format_html('<span class="agora-id" title="{}">{}</span>', text, shown)


@register.filter
def exact(value: Any) -> Any:
    """A decimal without the zeros that its column pads it with."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else value


@register.simple_tag
def pill(tone: str, word: str) -> SafeString:
    """A status: always a word, the colour beside it."""
    return format_html('<span class="agora-pill agora-{}">{}</span>', tone, word)


@register.simple_tag
def time_zone_name() -> str:
    """The zone in which the page shows times."""
    return timezone.get_current_timezone_name() if settings.USE_TZ else settings.TIME_ZONE
