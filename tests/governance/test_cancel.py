"""What is recorded of a request to stop a run: who, at which door, once, and none of their words."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from agora_agent.durable.models import Run
from agora_agent.governance import audit
from agora_agent.models import AgentRun, AuditEntry
from agora_agent.runners.durable import DurableAgentRunner, build_engine
from agora_agent.turn import runner
from tests.clerk.model import CLERK
from tests.governance.rows import at
from tests.governance.rows import start as stored
from tests.support.turns import ended, start, until

pytestmark = pytest.mark.django_db(transaction=True)


def entries() -> list[AuditEntry]:
    assert not audit.verify()
    return list(AuditEntry.objects.filter(action="cancel_requested"))


def test_a_cancel_names_person_door_and_impersonator_and_repeats_no_words(
    people: Any, clerk: Any, either_runner: str
) -> None:
    clerk.holds = True
    run_id = start(people.alice)
    assert clerk.begun.wait(20)
    who = at(people.felix, "admin", auth_method="session", address="192.0.2.7", impersonator=people.root)
    assert runner.get().cancel(run_id, principal=who, reason="my secret words") is True
    run = ended(run_id)
    assert (run.status, run.cancelled_by) == ("cancelled", f"user:{people.felix.pk}")
    [entry] = entries()
    assert (entry.chain, entry.subject_ref, entry.via) == (str(run_id), f"run:{run_id}", "admin")
    assert entry.content == {
        "by": f"user:{people.felix.pk}",
        "auth_method": "session",
        "address": "192.0.2.7",
        "impersonator": f"user:{people.root.pk}",
    }
    assert runner.get().cancel(run_id, principal=at(people.root)) is False
    assert len(entries()) == 1


def test_a_caller_without_a_principal_is_recorded_as_it_names_itself(people: Any) -> None:
    named, nameless = stored(people.alice), stored(people.alice)
    door = runner.get(False)
    assert door.cancel(named.pk, by="user:7") is True
    assert door.cancel(nameless.pk) is True
    assert {entry.chain: entry.content for entry in entries()} == {
        str(named.pk): {"by": "user:7"},
        str(nameless.pk): {},
    }


def test_the_first_who_asks_stands_while_the_run_stops(people: Any, clerk: Any, engine: Any) -> None:
    clerk.holds = True
    run_id = start(people.alice)

    def drive() -> None:
        engine.run_due()
        connections.close_all()

    driver = threading.Thread(target=drive)
    driver.start()
    assert clerk.begun.wait(20)
    web = DurableAgentRunner(build_engine())  # another process: it can only ask
    assert web.cancel(run_id, principal=at(people.alice, "rest")) is True
    asked_at = AgentRun.objects.get(pk=run_id).cancel_requested_at
    assert web.cancel(run_id, principal=at(people.root, "admin")) is True
    assert web.cancel(run_id, by="user:999") is True
    assert AgentRun.objects.get(pk=run_id).cancel_requested_at == asked_at
    CLERK.go_on.set()
    driver.join(20)
    until(lambda: AgentRun.objects.get(pk=run_id).is_terminal)
    alice = f"user:{people.alice.pk}"
    assert (AgentRun.objects.get(pk=run_id).cancelled_by, Run.objects.get().cancel_by) == (alice, alice)
    [entry] = entries()
    assert (entry.content["by"], entry.via) == (alice, "rest")
