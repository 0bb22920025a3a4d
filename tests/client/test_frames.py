from __future__ import annotations

import json

import pytest

from agora_agent import decode_frame


def test_assistant_text_is_unnamed():
    assert decode_frame("", '{"delta":"hi"}') == {"type": "text", "delta": "hi"}
    assert decode_frame("message", '{"delta":"hi"}') == {"type": "text", "delta": "hi"}


@pytest.mark.parametrize("event", ["approval", "elicitation"])
def test_parked_work_names_the_run_and_the_call_to_answer(event):
    frame = decode_frame(event, json.dumps({"runId": "r", "id": "c", "toolName": "mail"}))
    assert (frame["type"], frame["runId"], frame["toolCallId"]) == (event, "r", "c")


@pytest.mark.parametrize("event", ["approval", "elicitation"])
@pytest.mark.parametrize("data", ['{"id":"c"}', '{"runId":"","id":"c"}', '{"runId":"r"}'])
def test_parked_work_that_nobody_can_answer_is_dropped(event, data):
    assert decode_frame(event, data) is None


@pytest.mark.parametrize("data", ["", "[]", "nonsense", "1"])
def test_what_is_not_an_object_is_dropped(data):
    assert decode_frame("tool-call", data) is None


def test_an_unknown_event_is_handed_on():
    assert decode_frame("future", '{"x":1}') == {"type": "future", "x": 1}
