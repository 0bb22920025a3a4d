from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib.admin import AdminSite
from django.db import transaction

from agora_agent.admin import RunAdminMixin, register
from agora_agent.governance import audit
from agora_agent.models import AgentRun, AuditEntry, Usage
from tests.support.people import person

APP = "/admin/agora_agent"


@pytest.fixture
def auditor(db):
    return person("ada", "agora_agent.view_auditentry", "agora_agent.view_accessentry", is_staff=True)


def test_an_auditor_reads_a_chain_and_changes_nothing(auditor, browse):
    with transaction.atomic():
        entry = audit.record(None, "tested", subject_ref="thing:1", content={"note": "</pre><img src=x>"})
        audit.record(None, "tested again")
    client = browse(auditor)
    assert "thing:1" in client.get(f"{APP}/auditentry/", {"q": "system"}).content.decode()
    page = client.get(f"{APP}/auditentry/{entry.pk}/change/").content.decode()
    assert entry.hash in page
    assert "<img" not in page
    assert client.post(f"{APP}/auditentry/{entry.pk}/change/", {"action": "x"}).status_code == 403
    client.post(f"{APP}/auditentry/", {"action": "delete_selected", "_selected_action": [str(entry.pk)]})
    assert AuditEntry.objects.count() == 2
    assert not audit.verify()


def test_records_are_for_holders_of_their_view_permission(alice, browse):
    for page in ("auditentry", "accessentry", "usage", "thread", "agentrun"):
        assert browse(alice).get(f"{APP}/{page}/").status_code == 403


def test_access_entries_are_listed_and_shown(auditor, browse):
    audit.access("run", subject_ref="run:7", via="rest")
    client = browse(auditor)
    assert "run:7" in client.get(f"{APP}/accessentry/").content.decode()
    assert "run:7" in client.get(f"{APP}/accessentry/", {"via": "rest"}).content.decode()
    assert "run:7" not in client.get(f"{APP}/accessentry/", {"via": "admin"}).content.decode()


def test_usage_of_other_peoples_runs_needs_the_right_to_see_them(alice, operator, make_run, browse):
    Usage.objects.create(run=make_run(alice), step=0, attempt=1, model="gpt-x", input_tokens=12)
    clara = person("clara", "agora_agent.view_usage", is_staff=True)
    assert "gpt-x" not in browse(clara).get(f"{APP}/usage/").content.decode()
    both = person("bert", "agora_agent.view_usage", "agora_agent.view_all_runs", is_staff=True)
    assert "gpt-x" in browse(both).get(f"{APP}/usage/").content.decode()


def test_a_thread_shows_its_transcript_to_its_readers(alice, operator, make_run, browse):
    run = make_run(alice)
    run.thread.messages.create(seq=1, role="user", content="first\nline <b>", run_id=run.pk)
    run.thread.messages.create(seq=2, role="assistant", content="second", run_id=run.pk)
    page = browse(operator).get(f"{APP}/thread/{run.thread_id}/change/").content.decode()
    assert page.index("first\nline &lt;b&gt;") < page.index("second")
    assert f"{APP}/agentrun/{run.pk}/change/" in page


def test_a_project_registers_its_own_pages(db):
    site = AdminSite(name="own")
    register(site)
    assert {model._meta.model_name for model in site._registry} == {
        "agentrun", "thread", "pendingapproval", "auditentry", "accessentry", "usage",
    }  # fmt: skip
    assert issubclass(type(site._registry[AgentRun]), RunAdminMixin)


def test_every_model_that_is_registered_is_read_only(db, rf):
    site = AdminSite(name="own")
    register(site)
    request = rf.get("/")
    request.user = person("root", is_staff=True, is_superuser=True)
    for page in site._registry.values():
        assert not page.has_add_permission(request)
        assert not page.has_change_permission(request)
        assert not page.has_delete_permission(request)


def test_the_engines_app_registers_nothing(db):
    from django.contrib import admin

    assert not any(admin.site.is_registered(m) for m in apps.get_app_config("agora_durable").get_models())
