"""The fake model server is strict about prompts and does as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from agora_agent.providers.base import ModelRequest
from agora_agent.providers.scripted import Reply
from agora_agent.testing.server import FakeOpenAI, scripted
from agora_agent.testing.turns import drop, finish, http_error, text, usage

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OTHER = {**CALL, "id": "c2"}
USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


def assistant(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def post(server: FakeOpenAI, *messages: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"model": "m", "messages": list(messages), **more}
    return httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=10)


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_turns_are_served_in_order_and_requests_kept() -> None:
    with FakeOpenAI([[text("a"), finish()]]) as server:
        server.turn(text("b"), finish(), usage(3, 1))
        first, second = post(server, USER), post(server, USER)
    assert events(first)[0]["choices"][0]["delta"] == {"content": "a"}
    assert events(second)[2]["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    assert [body["messages"] for body in server.requests] == [[USER], [USER]]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [USER, RESULT],
        [USER, assistant(CALL)],
        [USER, assistant(CALL), USER, RESULT],
        [USER, assistant(CALL, OTHER), RESULT, USER],
        [USER, assistant(CALL), RESULT, RESULT],
        [USER, assistant(CALL, CALL), RESULT, RESULT],
        [USER, assistant({**CALL, "id": ""}), {**RESULT, "tool_call_id": ""}],
        [USER, assistant({**CALL, "function": {"name": "look here", "arguments": "{}"}}), RESULT],
        [USER, assistant({**CALL, "function": {"name": "look", "arguments": ""}}), RESULT],
        [USER, assistant({**CALL, "function": {"name": "look", "arguments": "[]"}}), RESULT],
        [USER, assistant(CALL), {**RESULT, "content": None}],
    ],
)
def test_badly_paired_prompt_is_refused_and_remembered(messages: list[dict[str, Any]]) -> None:
    with FakeOpenAI([[text("a"), finish()]]) as server:
        response = post(server, *messages)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == server.violations[0]


def test_well_paired_prompt_is_served() -> None:
    with FakeOpenAI([[text("a"), finish()]]) as server:
        response = post(server, USER, assistant(CALL, OTHER), {**RESULT, "tool_call_id": "c2"}, RESULT, USER)
    assert response.status_code == 200
    assert server.violations == []


def test_request_too_many_is_a_violation() -> None:
    with FakeOpenAI() as server:
        assert post(server, USER).status_code == 400
    assert server.violations == ["no turn is left for this request"]


def test_errors_headers_and_dropped_connections() -> None:
    with FakeOpenAI([[http_error(429, retry_after="2")], [text("a"), drop()]]) as server:
        response = post(server, USER)
        assert (response.status_code, response.headers["retry-after"]) == (429, "2")
        with pytest.raises(httpx.RemoteProtocolError):
            post(server, USER)
        assert httpx.post(f"{server.base_url}/embeddings", json={}).status_code == 404
        assert httpx.post(f"{server.base_url}/chat/completions", content=b"{").status_code == 400


def test_script_sees_the_conversation_in_the_neutral_form() -> None:
    seen: list[ModelRequest] = []

    def script(request: ModelRequest) -> Reply:
        seen.append(request)
        return Reply("ok", calls=[("look", {"far": True})])

    failed = {**RESULT, "content": "[failed] no light"}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with FakeOpenAI(script=scripted(script)) as server:
        response = post(
            server, {"role": "system", "content": "s"}, USER, assistant(CALL), failed, tools=tools
        )
    assert seen[0].system == "s"
    assert seen[0].tools[0].name == "look"
    assert seen[0].messages == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look", "input": {}}]},
        {"role": "tool", "id": "c1", "name": "look", "content": "no light", "status": "failed"},
    ]
    deltas = [chunk["choices"][0]["delta"] for chunk in events(response) if chunk["choices"]]
    assert deltas[0] == {"content": "ok"}
    assert deltas[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"far": true}'}


@pytest.mark.processes
def test_demo_server_runs_as_a_module_without_django_settings() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "agora_agent.testing.server", "--port", "0", "--token-delay", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = line.split()[-1]
            body = {"model": "m", "messages": [USER]}
            response = httpx.post(f"{address}/chat/completions", json=body, timeout=10)
        finally:
            process.terminate()
    said = "".join(
        chunk["choices"][0]["delta"].get("content", "") for chunk in events(response) if chunk["choices"]
    )
    assert "offline demo model" in said
