"""Which runner is in use, and what happens to runs whose process is gone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agora_agent.exceptions import Busy, LimitExceeded
from agora_agent.models import AgentRun, Thread, ToolCall
from agora_agent.providers.scripted import Reply
from agora_agent.runners.maintenance import maintain
from agora_agent.turn import runner
from tests.support.turns import ended, pending, start, terminal, text_of

pytestmark = pytest.mark.django_db(transaction=True)

MAIL = Reply(calls=[("send_mail", {"to": "a"})])

WITHOUT_THE_APP = """
import logging, warnings
logging.basicConfig(level=logging.WARNING)
from tests.settings import *
INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "agora_agent.durable"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "%s/db.sqlite3",
             "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}}}
AGORA_AGENT = {**AGORA_AGENT, "DURABLE": %s}
"""

PROGRAM = """
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth import get_user_model
from agora_agent.models import AgentRun
from agora_agent.turn import runner
from tests.clerk.model import CLERK
from tests.support.turns import ended, start
CLERK.script("Hello.")
user = get_user_model().objects.create_user("alice")
print(runner.durable_state())
run = ended(start(user))
print(run.status, run.durable, run.answer)
"""


def run_without_the_app(tmp_path, durable):
    (tmp_path / "bare_settings.py").write_text(WITHOUT_THE_APP % (tmp_path, durable))
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "bare_settings", "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.processes
def test_durable_without_its_app_runs_inline_and_says_so(tmp_path):
    done = run_without_the_app(tmp_path, "True")
    assert done.returncode == 0, done.stderr
    assert "DurableState(asked=True, on=False" in done.stdout
    assert "completed False Hello." in done.stdout
    assert "'agora_agent.durable' is not in INSTALLED_APPS: runs are inline." in done.stderr


@pytest.mark.processes
def test_durable_required_without_its_app_does_not_start(tmp_path):
    done = run_without_the_app(tmp_path, '"required"')
    assert done.returncode != 0
    assert "Durable runs are required" in done.stderr


def test_inline_is_the_default(settings):
    settings.AGORA_AGENT = {}
    assert runner.durable_state() == (False, False, "")
    assert runner.get().durable is False
    assert runner.get(True).durable is True


def test_an_inline_run_whose_process_died_is_settled_and_its_thread_is_free(alice, clerk, caplog):
    caplog.set_level(logging.CRITICAL, "agora_agent")
    clerk.script("Hello.")
    run = ended(start(alice))
    AgentRun.objects.filter(pk=run.pk).update(status="running", finished_at=None, owner="gone:1")
    Thread.objects.update(active_run_id=run.pk)
    ToolCall.objects.create(run=run, call_id="c1", tool_name="send_mail", kind="action", status="executing")
    maintain()
    assert AgentRun.objects.get().status == "running"
    AgentRun.objects.update(heartbeat_at=run.created_at - timedelta(seconds=60))
    clerk.script("And again.")
    again = ended(start(alice, "hi", thread_id=run.thread_id))
    run.refresh_from_db()
    assert (run.status, run.error_code) == ("failed", "interrupted")
    assert ToolCall.objects.get().status == "interrupted"
    assert again.answer == "And again."


def test_an_inline_turn_finds_a_decision_that_another_process_wrote(alice, clerk):
    clerk.script(MAIL, "Sent.")
    run_id = start(alice)
    [call] = pending(run_id)
    program = f"""
import django
django.setup()
from agora_agent.governance.decisions import decide
from agora_agent.governance.principal import Principal
from django.contrib.auth import get_user_model
user = get_user_model().objects.get(username="alice")
decide(Principal(user=user, via="command"), run_id="{run_id}", call_id="{call.call_id}", verdict="approve")
"""
    from django.db import connection

    url = {**os.environ, "AGORA_TEST_DATABASE": connection.settings_dict["NAME"]}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = ended(run_id)
    assert (run.status, text_of(run_id), terminal(run_id)) == ("completed", "Sent.", "done")


def test_more_inline_turns_than_may_execute_are_refused_and_leave_nothing(alice, clerk, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "INLINE_MAX_CONCURRENCY": 1}
    clerk.holds = True
    clerk.script("Hello.")
    run_id = start(alice)
    assert clerk.begun.wait(10)
    with pytest.raises(Busy):
        start(alice)
    assert AgentRun.objects.count() == 1
    clerk.go_on.set()
    ended(run_id)


def test_an_inline_turn_that_waits_for_a_person_takes_no_place(alice, clerk, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "INLINE_MAX_CONCURRENCY": 1}
    clerk.script(MAIL, "Sent.")
    parked = start(alice)
    pending(parked)
    clerk.script("Hello.")
    assert ended(start(alice)).answer == "Hello."
    runner.get(False).cancel(parked)
    ended(parked)


def test_an_actor_holds_a_bounded_number_of_runs(alice, clerk, settings):
    settings.AGORA_AGENT = {**settings.AGORA_AGENT, "MAX_PARKED_RUNS_PER_ACTOR": 1}
    clerk.script(MAIL, "Sent.")
    parked = start(alice)
    pending(parked)
    with pytest.raises(LimitExceeded):
        start(alice)
    assert Thread.objects.count() == 1
    runner.get(False).cancel(parked)
    ended(parked)
