from __future__ import annotations

import datetime as dt
import enum
import json
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agora_agent import codec

FINITE = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    FINITE,
    st.text(),
    st.decimals(allow_nan=False, allow_infinity=False, places=4),
    st.dates(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.uuids(),
)
KEYS = st.text() | st.sampled_from(["$decimal", "$dict", "$date", "$datetime", "$uuid"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)


def same(left, right):
    """Equal, and of equal types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


@given(VALUES)
def test_what_is_stored_is_read_back_as_it_was(value):
    assert same(codec.roundtrip(value), value)


@given(VALUES)
def test_the_stored_form_is_ascii_json_and_a_fixed_point(value):
    text = codec.encode(value)
    assert text.isascii()
    assert codec.encode(codec.decode(text)) == text
    json.loads(text)


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(value):
    reverse = dict(reversed(list(value.items())))
    assert codec.encode(value) == codec.encode(reverse)


@pytest.mark.parametrize(
    "value", [{"$decimal": "1"}, {"$dict": {"$uuid": "x"}}, {"$dict": 1}, [{"$date": None}]]
)
def test_a_dict_that_looks_like_a_tag_stays_a_dict(value):
    assert codec.roundtrip(value) == value


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "\udfff\ud83d", "\u2028", "\U0001f44d"])
def test_any_text_survives(text):
    assert codec.roundtrip({text: text}) == {text: text}


def test_whole_numbers_of_any_size_stay_whole():
    assert codec.roundtrip(2**80) == 2**80


def test_a_tuple_comes_back_as_a_list():
    assert codec.roundtrip((1, (2,))) == [1, [2]]


def test_the_two_zeros_are_one_number_and_floats_are_no_integers():
    assert codec.encode(-0.0) == codec.encode(0.0) == "0.0"
    assert codec.encode(1.0) != codec.encode(1)


def test_a_decimal_keeps_its_scale_and_has_no_exponent():
    assert str(codec.roundtrip(Decimal("1.50"))) == "1.50"
    assert "E" not in codec.encode(Decimal("1E+5"))


def test_a_moment_is_stored_in_utc():
    tokyo = dt.timezone(dt.timedelta(hours=9))
    moment = dt.datetime(2026, 3, 1, 9, 0, tzinfo=tokyo)
    assert codec.roundtrip(moment) == moment
    assert codec.encode(moment) == codec.encode(moment.astimezone(dt.UTC))


def test_words_that_are_enums_are_stored_as_words():
    class Colour(str, enum.Enum):  # noqa: UP042
        RED = "red"

    assert codec.roundtrip(Colour.RED) == "red"


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity"), {1: 2}, {None: 1}, b"x", {1, 2},
        object(), print, [[math.nan]], dt.timedelta(1), dt.time(1),
    ],
)  # fmt: skip
def test_what_cannot_be_read_back_is_refused(value):
    with pytest.raises(codec.Unencodable):
        codec.encode({"value": value})


def test_depth_is_bounded():
    value: list[object] = []
    for _ in range(codec.MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(codec.Unencodable):
        codec.encode(value)


def test_the_canonical_form_is_utf8_with_sorted_keys_and_no_spaces():
    value = {"b": [1, 2.5, True, None], "a": "ä€", "amount": Decimal("12.50"), "on": dt.date(2026, 3, 1)}
    assert (
        codec.canonical(value)
        == (
            '{"a":"ä€","amount":{"$decimal":"12.50"},"b":[1,2.5,true,null],"on":{"$date":"2026-03-01"}}'
        ).encode()
    )


def test_half_a_character_is_not_canonical():
    with pytest.raises(codec.Unencodable):
        codec.canonical({"a": "\ud800"})


# What any other implementation must arrive at: SHA-256 of b"agora-digest-1\n<identity>\n<canonical form>".
VECTORS = [
    ({}, "find_order:1:0", "ccd650551358346f8eb836855299b147f1aceafad74cb6ed92935fb93530d69e"),
    (
        {"number": "1001", "amount": Decimal("12.50")},
        "refund_order:1:ab",
        "3e1827ca86a5bcb159e44df8fc4e209ee6d3588674ae01e254c59e9c22d026bc",
    ),
    (
        {"text": "ä€👍", "n": 2**60, "f": -0.0, "on": dt.date(2026, 3, 1)},
        "send_note:2:cd",
        "f8123758e5c6e0528ca37fe2255b98d1f26fe13058760fd0bc183d7debd6314c",
    ),
]


@pytest.mark.parametrize(("value", "identity", "expected"), VECTORS)
def test_digests_are_what_they_were(value, identity, expected):
    assert codec.digest(value, identity=identity) == expected


def test_a_digest_tells_tools_values_and_types_apart():
    digests = {
        codec.digest(value, identity=identity)
        for identity in ("refund:1:x", "refund:2:x")
        for value in (
            {"a": 1},
            {"a": 1.0},
            {"a": "1"},
            {"a": Decimal("1")},
            {"a": Decimal("1.0")},
            {"a": True},
        )
    }
    assert len(digests) == 12


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\u2400b"),
        ("\ud83d\udc4d", "\U0001f44d"),
        ("x\ud800y", "x\ufffdy"),
        ("\udc4d", "\ufffd"),
    ],
)
def test_text_is_made_fit_for_every_database(text, clean):
    assert codec.clean_text(text) == clean


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_cleaned_text_is_valid_and_stays_so(text):
    clean = codec.clean_text(text)
    clean.encode("utf-8")
    assert "\x00" not in clean
    assert codec.clean_text(clean) == clean
