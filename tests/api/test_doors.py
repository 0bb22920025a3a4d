"""Who gets past the door, for every route: strangers, other people, other sites, malformed ids and bodies."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from agora_agent.models import AccessEntry, AgentRun
from tests.api.rows import get, park, post, signed_in, start

ANY = str(uuid.uuid4())
READS = ["threads", f"threads/{ANY}", "runs", f"runs/{ANY}", "approvals", "health", f"chat/{ANY}/stream"]
WRITES = [
    "chat",
    f"chat/{ANY}/cancel",
    "tool-call/approve",
    "tool-call/reject",
    "tool-call/settle",
    "threads",
]
MALFORMED = [
    "x",
    "1",
    "null",
    "[]",
    "x" * 10_000,
    "%00",
    "a%0d%0ab",
    "{" + ANY + "}",
    "%F0%9F%98%80",
    "0" * 32,
]


def rows() -> dict[str, int]:
    """How many rows there are of everything that a domain change would touch."""
    kept = (AccessEntry,)
    models = [
        *apps.get_app_config("agora_agent").get_models(),
        *apps.get_app_config("agora_durable").get_models(),
    ]
    return {
        model._meta.label: model._default_manager.count()
        for model in models
        if model not in kept and not model._meta.proxy
    }


def is_problem(response: Any, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = json.loads(response.content)
    assert {"type", "title", "status", "detail", "code"} <= problem.keys()
    assert problem["status"] == status
    if code is not None:
        assert problem["code"] == code
    return dict(problem)


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("slash", ["", "/"])
def test_nobody_reads_without_an_identity(db: None, path: str, slash: str, caplog: Any) -> None:
    response = get(Client(), path + slash, accept="text/event-stream")
    is_problem(response, 401, "not_authenticated")
    assert response.headers["WWW-Authenticate"].split()[0] not in ("Basic", "Digest")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", WRITES)
@pytest.mark.parametrize("slash", ["", "/"])
def test_nobody_writes_without_an_identity(db: None, path: str, slash: str) -> None:
    before = rows()
    is_problem(post(Client(), path + slash, {"message": "hi"}), 401, "not_authenticated")
    assert rows() == before


def test_wrong_credentials_are_401(db: None) -> None:
    is_problem(get(Client(), "runs", authorization="Token nonsense"), 401)


def test_a_deactivated_user_is_nobody(alice: Any) -> None:
    client = signed_in(alice)
    alice.is_active = False
    alice.save()
    is_problem(get(client, "runs"), 401)


def test_a_resolver_that_fails_lets_nobody_in(alice: Any, settings: Any) -> None:
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "ACTOR_RESOLVER": "tests.api.test_doors.BrokenResolver"}
    is_problem(get(signed_in(alice), "runs"), 401)


class BrokenResolver:
    """Raises."""

    def resolve(self, request: Any) -> None:
        raise RuntimeError("SENTINEL-sk-123")


def test_what_is_somebody_elses_looks_like_nothing(alice: Any, bob: Any) -> None:
    run = start(alice)
    child = start(alice, parent=run)
    park(run)
    before = rows()
    unknown, foreign = signed_in(bob), signed_in(bob)
    for path in ("runs/{}", "chat/{}/stream"):
        for target in (run, child):
            seen = is_problem(get(foreign, path.format(target.pk)), 404, "not_found")
            assert seen == is_problem(get(unknown, path.format(ANY)), 404)
    assert is_problem(get(foreign, f"threads/{run.thread_id}"), 404) == is_problem(
        get(unknown, f"threads/{ANY}"), 404
    )
    seen = is_problem(post(foreign, f"chat/{run.pk}/cancel"), 404)
    assert seen == is_problem(post(unknown, f"chat/{ANY}/cancel"), 404)
    for verb in ("approve", "reject", "settle"):
        for body in ({"toolCallId": "c1"}, {"runId": str(run.pk), "toolCallId": "c1"}):
            # A mistake in the rest of the body changes nothing about the answer.
            for extra in ({}, {"reason": 5, "digest": [], "outcome": "x"}):
                seen = is_problem(post(foreign, f"tool-call/{verb}", {**body, **extra}), 404, "not_found")
        assert seen == is_problem(post(unknown, f"tool-call/{verb}", {"runId": ANY, "toolCallId": "c1"}), 404)
    own = start(bob)
    is_problem(post(foreign, "tool-call/approve", {"runId": str(own.pk), "toolCallId": "c1"}), 404)
    seen = is_problem(post(foreign, "chat", {"message": "hi", "threadId": str(run.thread_id)}), 404)
    assert seen == is_problem(post(unknown, "chat", {"message": "hi", "threadId": ANY}), 404)
    assert json.loads(get(foreign, "approvals").content)["results"] == []
    after = rows()
    assert {label: after[label] - before[label] for label in after if after[label] != before[label]} == {
        "agora_agent.AgentRun": 1,
        "agora_agent.Stream": 1,
        "agora_agent.Thread": 1,
    }


def test_an_approver_sees_the_call_and_not_the_run(alice: Any, carol: Any) -> None:
    run = start(alice)
    park(run, "wipe")
    client = signed_in(carol)
    is_problem(get(client, f"runs/{run.pk}"), 404)
    is_problem(get(client, f"chat/{run.pk}/stream"), 404)
    is_problem(get(client, f"threads/{run.thread_id}"), 404)
    [approval] = json.loads(get(client, "approvals").content)["results"]
    assert approval["runId"] == str(run.pk)


def test_a_reader_of_everything_reads_and_does_not_write(alice: Any, dave: Any) -> None:
    run = start(alice)
    park(run)
    client = signed_in(dave)
    assert get(client, f"runs/{run.pk}").status_code == 200
    assert get(client, f"threads/{run.thread_id}").status_code == 200
    is_problem(post(client, f"chat/{run.pk}/cancel"), 403, "forbidden")
    is_problem(post(client, "chat", {"message": "hi", "threadId": str(run.thread_id)}), 403)
    is_problem(post(client, "tool-call/approve", {"runId": str(run.pk), "toolCallId": "c1"}), 403)
    assert AccessEntry.objects.filter(action="run").count() == 1
    assert AccessEntry.objects.filter(action="thread").count() == 1


@pytest.mark.parametrize("path", ["runs/{}", "chat/{}/stream", "threads/{}"])
@pytest.mark.parametrize("bad", MALFORMED)
def test_malformed_ids_in_the_path_are_unknown(alice: Any, path: str, bad: str) -> None:
    response = get(signed_in(alice), path.format(bad))
    assert response.status_code == 404


@pytest.mark.parametrize(
    "bad", ["x", 1, None, [], {}, True, "x" * 10_000, ANY.upper(), "a\u0000b", "c1 ", 1.5]
)
def test_malformed_ids_in_the_body_are_no_error_of_ours(alice: Any, bad: Any) -> None:
    run = start(alice)
    park(run)
    client = signed_in(alice)
    before = rows()
    for verb in ("approve", "reject", "settle"):
        assert post(client, f"tool-call/{verb}", {"runId": str(run.pk), "toolCallId": bad}).status_code in (
            400,
            404,
        )
        if bad is not None:
            is_problem(post(client, f"tool-call/{verb}", {"runId": bad, "toolCallId": "c1"}), 404)
    if bad is not None:
        is_problem(post(client, "chat", {"message": "hi", "threadId": bad, "agent": "desk"}), 404)
    assert rows() == before


DEEP = '{"message":' + "[" * 2000 + "]" * 2000 + "}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b"[]", 400),
        (b'"text"', 400),
        (b'{"message": NaN}', 400),
        (b'{"message": 1e999}', 400),
        (b'{"message": "a", "message": "b"}', 400),
        (b"\xff\xfe", 400),
        (b'{"message": ' + b"9" * 5000 + b"}", 400),
        (DEEP.encode(), 400),
        (('{"message":"hi","pageContext":' + '{"a":' * 40 + "1" + "}" * 41).encode(), 400),
        (b'{"message": "' + b"x" * 5_000_000 + b'"}', 413),
    ],
)
@pytest.mark.parametrize("path", WRITES)
def test_malformed_bodies_are_refused(
    alice: Any, path: str, body: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    if "cancel" in path:
        path = f"chat/{start(alice).pk}/cancel"
    before = rows()
    response = signed_in(alice).generic("POST", f"/agent/{path}", body, content_type="application/json")
    is_problem(response, status)
    assert rows() == before
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "application/jsonp",
    ],
)
@pytest.mark.parametrize("path", WRITES)
def test_only_json_is_taken(alice: Any, path: str, content_type: str) -> None:
    response = signed_in(alice).generic("POST", f"/agent/{path}", b"{}", content_type=content_type)
    is_problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"origin": "http://sub.testserver"},
        {"origin": "https://testserver"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://[broken", "sec-fetch-site": "cross-site"},
    ],
)
def test_another_sites_page_changes_nothing(alice: Any, path: str, headers: dict[str, str]) -> None:
    before = rows()
    is_problem(post(signed_in(alice), path, {"message": "hi"}, **headers), 403, "forbidden")
    assert rows() == before


def test_another_site_is_refused_whatever_the_authentication(alice: Any) -> None:
    from rest_framework.authtoken.models import Token

    token = Token.objects.create(user=alice)
    for authorization in (f"Token {token.key}", "Basic YWxpY2U6ZGVtbw=="):
        headers = {"authorization": authorization, "origin": "https://evil.test"}
        is_problem(post(Client(), "tool-call/approve", {"toolCallId": "c1"}, **headers), 403)
        form = Client().post("/agent/tool-call/approve", {"toolCallId": "c1"}, headers=headers)
        is_problem(form, 415)


@pytest.mark.parametrize(
    ("trusted", "origin"),
    [("https://app.test", "https://app.test"), ("https://*.app.test", "https://a.app.test")],
)
def test_a_trusted_origin_is_our_own(alice: Any, settings: Any, trusted: str, origin: str) -> None:
    settings.CSRF_TRUSTED_ORIGINS = [trusted]
    client = signed_in(alice)
    assert post(client, "threads", {}, origin=origin, **{"sec-fetch-site": "cross-site"}).status_code == 201
    assert post(client, "threads", {}, origin="http://testserver").status_code == 201
    is_problem(post(client, "threads", {}, origin="https://app.test.evil.test"), 403)


@pytest.mark.parametrize("path", WRITES)
def test_a_session_needs_the_csrf_token(alice: Any, path: str) -> None:
    client = signed_in(alice, enforce_csrf_checks=True)
    is_problem(post(client, path, {"message": "hi"}), 403)


@pytest.mark.parametrize("path", [*READS, *WRITES])
def test_reading_methods_change_nothing(alice: Any, path: str) -> None:
    run = start(alice)
    park(run)
    path = path.replace(ANY, str(run.thread_id if "threads/" in path else run.pk))
    client = signed_in(alice)
    before = rows()
    for method in ("GET", "HEAD", "OPTIONS", "TRACE"):
        response = client.generic(method, f"/agent/{path}")
        assert response.status_code in (200, 405, 501), (method, path, response.status_code)
    assert rows() == before
    for method in ("PUT", "PATCH", "DELETE"):
        is_problem(client.generic(method, f"/agent/{path}", b"{}", content_type="application/json"), 405)
    assert rows() == before


def test_nothing_that_is_answered_may_be_cached_or_read_by_other_sites(alice: Any) -> None:
    response = get(signed_in(alice), "runs", origin="https://evil.test")
    assert "no-store" in response.headers["Cache-Control"]
    assert not [name for name in response.headers if name.lower().startswith("access-control-")]


def test_an_error_of_ours_is_a_problem_without_detail(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("SENTINEL postgres://u:p@h/db")

    monkeypatch.setattr("agora_agent.api.views.runs.visible_runs", fail)
    client = signed_in(alice)
    client.raise_request_exception = False
    response = get(client, "runs")
    is_problem(response, 500, "error")
    assert b"SENTINEL" not in response.content


def test_a_project_that_requires_login_everywhere_still_gets_our_401(alice: Any, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    is_problem(get(Client(), "runs"), 401)
    assert get(signed_in(alice), "runs").status_code == 200


def test_an_account_that_is_gone_owns_nothing(alice: Any, bob: Any) -> None:
    run = start(alice)
    alice.delete()
    assert AgentRun.objects.get(pk=run.pk).actor is None
    is_problem(get(signed_in(bob), f"runs/{run.pk}"), 404)


@pytest.mark.django_db(transaction=True)
def test_credentials_that_no_database_can_look_up_are_nobodys(client):
    credentials = base64.b64encode(b"al\x00ice:demo").decode()
    answer = client.get("/agent/runs", headers={"authorization": f"Basic {credentials}"})
    assert answer.status_code == 401
