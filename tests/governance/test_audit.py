from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from agora_agent.governance import audit
from agora_agent.governance.decisions import decide
from agora_agent.governance.locking import retrying
from agora_agent.ids import new_id
from agora_agent.models import AccessEntry, AuditEntry, AuditHead, Decision
from tests.governance.rows import all_at_once, at, park, start

pytestmark = pytest.mark.django_db


def raw(sql: str, *values: Any) -> None:
    """As somebody with the database's password would."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


@pytest.fixture
def chain(db: None) -> Any:
    run_id = new_id()
    for number in range(1, 6):
        audit.record(run_id, "noted", subject_ref=f"thing:{number}", content={"number": number})
    assert audit.verify() == audit.verify(run_id) == []
    return run_id


def found(chain: Any) -> list[tuple[int, str]]:
    problems = audit.verify(chain)
    assert {problem.chain for problem in problems} <= {str(chain)}
    assert audit.verify() == problems
    assert all(str(problem) for problem in problems)
    return [(problem.number, problem.kind) for problem in problems]


TABLE = AuditEntry._meta.db_table
HEADS = AuditHead._meta.db_table


def test_entries_are_numbered_and_chained(chain: Any) -> None:
    entries = list(AuditEntry.objects.order_by("number"))
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.previous for entry in entries] == ["", *(entry.hash for entry in entries[:-1])]
    head = AuditHead.objects.get()
    assert (head.length, head.head) == (5, entries[-1].hash)


def test_an_entry_stands_or_falls_with_what_it_tells_about(chain: Any) -> None:
    with transaction.atomic():
        audit.record(chain, "noted")
        transaction.set_rollback(True)
    assert AuditEntry.objects.count() == 5
    assert not found(chain)


@pytest.mark.django_db(transaction=True)
def test_an_entry_needs_an_open_transaction() -> None:
    with pytest.raises(transaction.TransactionManagementError):
        audit.record(None, "noted")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("action", "forgot"),
        ("subject_ref", "thing:9"),
        ("via", "admin"),
        ("content", '{"number":9}'),
        ("content", "{}"),
        ("content", "[3]"),
        ("content", "not what it was"),
        ("at", "2020-01-01 00:00:00"),
    ],
)
def test_an_altered_entry_is_named(chain: Any, column: str, value: str) -> None:
    raw(f"UPDATE {TABLE} SET {column} = %s WHERE number = 3", value)
    assert found(chain) == [(3, "altered")]


def test_an_altered_entry_with_a_hash_of_its_own_is_named(chain: Any) -> None:
    with override_settings(SECRET_KEY="somebody else's key, made up for this"):
        forged = AuditEntry.objects.get(number=3)
        forged.content = {"number": 9}
        forged.hash = audit._seal(forged, "somebody else's key, made up for this")
    raw(f"UPDATE {TABLE} SET content = %s, hash = %s WHERE number = 3", '{"number":9}', forged.hash)
    assert found(chain) == [(3, "altered"), (4, "altered")]


def test_a_missing_entry_is_named(chain: Any) -> None:
    raw(f"DELETE FROM {TABLE} WHERE number IN (2, 3)")
    assert found(chain) == [(2, "missing")]


def test_entries_in_another_order_are_named(chain: Any) -> None:
    for old, new in ((2, 99), (3, 2), (99, 3)):
        raw(f"UPDATE {TABLE} SET number = %s WHERE number = %s", new, old)
    assert {number for number, _kind in found(chain)} == {2, 3, 4}


def test_a_cut_end_is_named(chain: Any) -> None:
    raw(f"DELETE FROM {TABLE} WHERE number > 3")
    assert found(chain) == [(4, "cut")]


def test_a_chain_without_entries_is_named(chain: Any) -> None:
    raw(f"DELETE FROM {TABLE}")
    assert found(chain) == [(1, "cut")]


def test_a_chain_without_its_head_is_named(chain: Any) -> None:
    raw(f"DELETE FROM {HEADS}")
    assert found(chain) == [(number, "extra") for number in range(1, 6)]


@pytest.mark.parametrize("number", [0, -1, 6, 100])
def test_an_inserted_entry_is_named(chain: Any, number: int) -> None:
    copy = AuditEntry.objects.get(number=5)
    AuditEntry.objects.bulk_create(
        [
            AuditEntry(
                **{field.attname: getattr(copy, field.attname) for field in AuditEntry._meta.fields}
                | {"id": new_id(), "number": number}
            )
        ]
    )
    assert found(chain) == [(number, "extra")]


def test_an_entry_of_another_chain_does_not_fit(chain: Any) -> None:
    other = new_id()
    audit.record(other, "noted", subject_ref="thing:1", content={"number": 1})
    raw(f"DELETE FROM {TABLE} WHERE number = 1 AND chain = %s", str(chain))
    raw(f"UPDATE {TABLE} SET chain = %s WHERE chain = %s", str(chain), str(other))
    assert [(problem.number, problem.kind) for problem in audit.verify(chain)] == [
        (1, "altered"),
        (2, "altered"),
    ]
    assert [(problem.number, problem.kind) for problem in audit.verify(other)] == [(1, "cut")]


def test_a_head_that_was_set_back_with_its_entries_is_told_by_the_decisions(people: Any) -> None:
    run = start(people.alice)
    for call_id in ("c1", "c2"):
        park(run, "note", call_id)
        decide(at(people.alice), call_id=call_id, verdict="approve")
    assert not audit.verify()
    first = AuditEntry.objects.get(number=1)
    raw(f"DELETE FROM {TABLE} WHERE number = 2")
    raw(f"UPDATE {HEADS} SET length = 1, head = %s", first.hash)
    [problem] = audit.verify()
    assert (problem.chain, problem.kind) == (str(run.pk), "missing")
    assert str(Decision.objects.get(tool_call__call_id="c2").pk) in problem.detail
    raw(f"DELETE FROM {TABLE}")
    raw(f"DELETE FROM {HEADS}")
    assert [problem.kind for problem in audit.verify()] == ["missing", "missing"]


def test_a_decision_with_another_decider_is_named(people: Any) -> None:
    park(start(people.alice), "release")
    decide(at(people.carol), call_id="c1", verdict="approve")
    Decision.objects.update(principal=people.erin, principal_ref=f"user:{people.erin.pk}")
    assert [(problem.number, problem.kind) for problem in audit.verify()] == [(1, "altered")]


def test_a_new_secret_key_keeps_the_old_chain(chain: Any, settings: Any) -> None:
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = (
        [settings.SECRET_KEY],
        "a new key after so many years",
    )
    audit.record(chain, "noted")
    assert not found(chain)
    settings.SECRET_KEY_FALLBACKS = []
    assert found(chain) == [(number, "altered") for number in range(1, 6)]


def test_entries_are_not_changed_or_deleted_from_python(chain: Any) -> None:
    entry = AuditEntry.objects.get(number=1)
    for change in (
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        partial(AuditEntry.objects.update, via="x"),
    ):
        with pytest.raises(TypeError):
            change()


@pytest.mark.django_db(transaction=True)
def test_entries_written_at_once_are_one_chain() -> None:
    def note(chain: Any) -> None:
        with transaction.atomic():
            audit.record(chain, "noted")

    def write(chain: Any) -> None:
        for _ in range(5):
            retrying(partial(note, chain), "default")

    run_id = new_id()
    jobs: list[Callable[[], None]] = [partial(write, None), partial(write, run_id)] * 6
    assert all_at_once(jobs) == [None] * 12
    assert not audit.verify()
    assert sorted(AuditHead.objects.values_list("chain", "length")) == sorted(
        [(str(run_id), 30), ("system", 30)]
    )


def test_an_access_entry_says_who_and_where(people: Any) -> None:
    audit.access("read", principal=at(people.dave, "rest", address="192.0.2.7"), subject_ref="run:1\x00")
    audit.access("read", via="admin", content={"reader": "user:1"})
    first, second = AccessEntry.objects.order_by("pk")
    assert (first.via, first.subject_ref) == ("rest", "run:1\u2400")
    assert first.content["by"] == f"user:{people.dave.pk}"
    assert (second.via, second.content) == ("admin", {"reader": "user:1"})
