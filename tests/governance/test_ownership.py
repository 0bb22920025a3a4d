from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agora_agent.exceptions import NotVisible
from agora_agent.governance import ownership
from agora_agent.models import AgentRun, Thread
from tests.governance.rows import RELEASE, ago, grant, park, start

pytestmark = pytest.mark.django_db


def fresh(user: Any) -> Any:
    return type(user).objects.get(pk=user.pk)


def waiting(user: Any, tenant: str = "") -> list[str]:
    return [call.call_id for call in ownership.inbox(fresh(user), tenant)]


def test_people_see_their_own_and_auditors_see_all(people: Any) -> None:
    mine, theirs = start(people.alice), start(people.bob)
    park(mine, "note")
    assert list(ownership.visible_runs(people.alice)) == [mine]
    assert list(ownership.visible_threads(people.alice)) == [mine.thread]
    assert [call.run for call in ownership.visible_calls(people.alice)] == [mine]
    assert set(ownership.visible_runs(people.dave)) == {mine, theirs}
    assert set(ownership.visible_threads(people.dave)) == {mine.thread, theirs.thread}
    for nobody in (people.carol, people.felix, AnonymousUser()):
        assert not ownership.visible_runs(nobody)
        assert not ownership.visible_threads(nobody)
        assert not ownership.visible_calls(nobody)


def test_seeing_ends_with_the_account(people: Any) -> None:
    run = start(people.alice)
    for user in (people.alice, people.dave):
        user.is_active = False
        user.save()
        assert not ownership.visible_runs(user)
        with pytest.raises(NotVisible):
            ownership.get_run(user, run.pk)


def test_rows_without_an_owner_are_nobodys(people: Any) -> None:
    run = start(people.alice)
    for model in (AgentRun, Thread):
        model.objects.update(actor=None)
    run.refresh_from_db()
    for user in (people.alice, AnonymousUser()):
        assert not ownership.owns(user, run)
        assert not ownership.visible_runs(user)
    assert ownership.requesters(run) == {f"user:{people.alice.pk}"}


def test_the_reference_of_a_run_gives_nothing(people: Any) -> None:
    run = start(people.alice, actor_ref=str(people.bob.pk))
    assert not ownership.owns(people.bob, run)
    with pytest.raises(NotVisible):
        ownership.get_run(people.bob, run.pk)


def test_an_owner_of_another_kind_is_not_the_user_with_the_same_key(people: Any) -> None:
    run = start(people.alice, actor_kind="service")
    call = park(run, "note")
    assert not ownership.owns(people.alice, call)
    assert not ownership.may_decide(people.alice, call)
    assert not waiting(people.alice)


def test_a_tenant_is_a_wall(people: Any) -> None:
    run = start(people.alice, tenant="north")
    park(run, "note")
    for user in (people.alice, people.dave, people.root):
        with pytest.raises(NotVisible):
            ownership.get_run(user, run.pk, "south")
        assert not ownership.inbox(user, "south")
    assert ownership.get_run(people.alice, run.pk, "north") == run
    assert waiting(people.alice, "north") == ["c1"]


def test_a_deleted_thread_is_gone_for_everybody(people: Any) -> None:
    thread = start(people.alice).thread
    Thread.objects.filter(pk=thread.pk).update(deleted_at=ago(seconds=1))
    for user in (people.alice, people.dave):
        with pytest.raises(NotVisible):
            ownership.get_thread(user, thread.pk)


@pytest.mark.parametrize("key", [None, "", "x", 1, "0" * 32, "\x00", "'; --", {"$uuid": "x"}, [1]])
def test_malformed_ids_are_unknown(people: Any, key: Any) -> None:
    start(people.root)
    for look in (ownership.get_run, ownership.get_thread):
        with pytest.raises(NotVisible):
            look(people.root, key)


def test_ids_may_be_written_in_capitals(people: Any) -> None:
    run = start(people.alice)
    assert ownership.get_run(people.alice, str(run.pk).upper()) == run


# -- the inbox ------------------------------------------------------------------------------------------------------


def test_everybody_finds_what_waits_for_them_oldest_first(people: Any) -> None:
    first, second = start(people.alice), start(people.bob)
    park(first, "note", "a_note")
    park(first, "release", "a_release")
    park(second, "close", "b_close")
    park(second, "note", "b_note")
    park(second, "look", "b_look")
    assert waiting(people.alice) == ["a_note"]
    assert waiting(people.bob) == ["b_note"]
    assert waiting(people.carol) == ["a_release"]
    assert waiting(people.erin) == ["b_close"]
    assert waiting(people.felix) == ["a_release", "b_close"]
    assert waiting(people.root) == ["a_release", "b_close"]
    assert waiting(people.dave) == waiting(people.gina) == []
    assert not ownership.inbox(AnonymousUser())


def test_the_inbox_holds_what_may_be_decided_and_nothing_else(people: Any) -> None:
    grant(people.bob, RELEASE)
    people.carol.groups.add(Group.objects.get(name="Managers"))
    actors = [people.alice, people.bob, people.carol, people.root]
    calls = [
        park(start(actor, requesters=[f"user:{also.pk}"]), tool, f"{tool}-{actor}-{also}")
        for actor in actors
        for also in (actor, people.carol, people.felix)
        for tool in ("note", "release", "close")
    ]
    for user in [*actors, people.dave, people.erin, people.felix, people.gina]:
        person = fresh(user)
        mine = {call.call_id for call in calls if ownership.may_decide(person, call)}
        assert set(waiting(user)) == mine


def test_what_is_decided_or_ended_waits_for_nobody(people: Any) -> None:
    for status in ("approved", "rejected", "expired", "cancelled", "executed", "interrupted"):
        park(start(people.alice), "note", status=status)
    park(start(people.alice, status="failed"), "note")
    park(start(people.alice, cancel_requested_at=ago(seconds=1)), "note")
    assert waiting(people.alice) == []


def test_a_reference_that_only_looks_alike_is_somebody_else(people: Any) -> None:
    asked = f"user:{people.carol.pk}"
    park(start(people.alice, requesters=[f"{asked}0", f"x{asked}", asked.upper(), f'"{asked}']), "release")
    assert waiting(people.carol) == ["c1"]


def test_an_approver_that_does_not_exist_is_nobody_not_even_root(people: Any) -> None:
    run = start(people.alice)
    for number, approver in enumerate(
        ["permission:shop.nothing", "permission:x", "group:Nobody", "carol", "", "*"]
    ):
        park(run, "release", f"c{number}", approver=approver)
    for user in (people.carol, people.erin):
        assert waiting(user) == []
        assert not any(ownership.may_decide(fresh(user), call) for call in run.tool_calls.all())


def test_a_group_is_its_exact_name(people: Any) -> None:
    run = start(people.alice)
    exact, other, longer = (
        park(run, "close", name, approver=f"group:{name}") for name in ("Managers", "managers", "Managers-")
    )
    assert ownership.may_decide(people.erin, exact)
    for call in (other, longer):
        assert not ownership.may_decide(people.erin, call)


def test_a_full_inbox_costs_as_much_as_a_short_one(people: Any) -> None:
    def cost() -> int:
        person = fresh(people.carol)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            for call in ownership.inbox(person):
                assert call.run.thread.title == ""
                assert call.run.actor is not None
                assert call.run.actor.username
        return len(queries)

    park(start(people.alice), "release")
    park(start(people.carol), "note")
    park(start(people.carol), "release")
    before = cost()
    for number in range(10):
        park(start(people.alice), "release", f"r{number}")
        park(start(people.carol), "note", f"n{number}")
        park(start(people.carol), "release", f"c{number}")
    assert cost() == before


def test_an_approver_sees_the_call_and_not_the_run(people: Any) -> None:
    call = park(start(people.alice), "release")
    assert ownership.can_see_call(people.carol, call)
    with pytest.raises(NotVisible):
        ownership.get_run(people.carol, call.run_id)
    assert not ownership.can_see_call(people.bob, call)
    assert not ownership.can_see_call(people.gina, call)
    call.status = "interrupted"
    call.save()
    assert ownership.can_see_call(people.gina, call)
