"""The start of a run: thread, run row and stream appear together or not at all."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connections, router
from django.db.models import Count, Q

from agora_agent.agents.registry import get_agent
from agora_agent.codec import clean_text
from agora_agent.conf import agora_settings
from agora_agent.db import DbNow
from agora_agent.exceptions import (
    AgoraError,
    InvalidInput,
    LimitExceeded,
    NotVisible,
    RunActive,
    RunCancelled,
)
from agora_agent.governance.rights import fresh_user
from agora_agent.ids import new_id
from agora_agent.models import AgentRun, Thread, ToolCall, write_alias
from agora_agent.runners.stale import settle_if_stale
from agora_agent.streaming import frames
from agora_agent.turn.hooks import TurnInput
from agora_agent.turn.runner import AgentRunInput

TITLE_CHARS = 60


class DelegationRefused(AgoraError):
    """The delegated run may not start."""

    code = "limit_exceeded"


def create_run(
    run_input: AgentRunInput, run_id: uuid.UUID | None, *, durable: bool, owner: str = ""
) -> TurnInput:
    """Store a top-level run in the open transaction, claiming its thread.

    Raises:
        NotVisible, RunActive, InvalidInput, LimitExceeded: see ``AgentRunner.start``.
    """
    user = _lock_actor(run_input.user.pk)
    agent = get_agent(run_input.agent)
    if user is None or agent is None or not agent.may_start(user):
        raise InvalidInput(f"There is no agent {run_input.agent!r} that you may start.")
    if run_input.persona and run_input.persona not in {persona.name for persona in agent.personas}:
        raise InvalidInput(f"The agent {agent.name!r} has no persona {run_input.persona!r}.")
    message = clean_text(run_input.message)
    if not message.strip():
        raise InvalidInput("The message is blank: say what the agent is to do.")
    run_id = run_id or new_id()
    thread_id = _claim_thread(run_input, run_id, user, message)
    _check_limits(user)
    turn = TurnInput(
        run_id=run_id,
        thread_id=thread_id,
        root_id=run_id,
        agent=agent.name,
        persona=run_input.persona,
        message=message,
        user_id=str(user.pk),
        tenant=run_input.tenant,
        page_context=run_input.page_context,
        path=(agent.name,),
        max_steps=agent.max_steps or agora_settings.MAX_STEPS,
        max_tool_calls=agora_settings.MAX_TOOL_CALLS_PER_STEP,
        history_messages=agora_settings.HISTORY_MAX_MESSAGES,
        day=dt.datetime.now(dt.UTC).date().isoformat(),
    )
    insert_run(turn, user, parent=None, durable=durable, owner=owner, requesters=run_input.requesters)
    frames.open_stream(run_id)
    return turn


def create_child(
    turn: TurnInput, parent_id: uuid.UUID, call_pk: uuid.UUID, *, durable: bool, owner: str = ""
) -> None:
    """Store a delegated run and its hidden transcript in the open transaction. Its actor is its ancestor's.

    Raises:
        RunCancelled: the parent has ended or is being stopped.
        DelegationRefused: run or tree have as many children as they may.
    """
    waits = AgentRun.objects.filter(
        pk=parent_id, status=AgentRun.Status.RUNNING, cancel_requested_at=None
    ).update(phase=AgentRun.Phase.WAITING)
    if not waits:
        raise RunCancelled("the run was ended before it could delegate")
    parent = AgentRun.objects.get(pk=parent_id)
    if AgentRun.objects.filter(parent=parent).count() >= agora_settings.MAX_CHILDREN_PER_RUN:
        raise DelegationRefused("This run has delegated as often as it may.")
    if AgentRun.objects.filter(root_id=turn.root_id).count() >= agora_settings.MAX_RUNS_PER_TREE:
        raise DelegationRefused("The agents of this turn have delegated as often as they may.")
    Thread.objects.create(
        pk=turn.thread_id,
        actor_id=parent.actor_id,
        actor_kind=parent.actor_kind,
        actor_ref=parent.actor_ref,
        tenant=parent.tenant,
        parent_run_id=parent_id,
        active_run_id=turn.run_id,
        default_agent=turn.agent,
    )
    insert_run(
        turn,
        parent.actor,
        parent=parent,
        durable=durable,
        owner=owner,
        requesters=tuple(parent.requesters),
    )
    ToolCall.objects.filter(pk=call_pk).update(child_run_id=turn.run_id, launched_at=DbNow())


def insert_run(
    turn: TurnInput,
    user: Any,
    *,
    parent: AgentRun | None,
    durable: bool,
    owner: str,
    requesters: tuple[str, ...],
) -> None:
    """Insert the row of a run that is about to begin."""
    reference = str(user.pk) if user is not None else ""
    AgentRun.objects.create(
        pk=turn.run_id,
        thread_id=turn.thread_id,
        parent=parent,
        root_id=turn.root_id,
        depth=turn.depth,
        agent=turn.agent,
        persona=turn.persona,
        input=turn.pack(),
        requesters=sorted({f"user:{reference}", *requesters}),
        actor=user,
        actor_ref=reference,
        tenant=turn.tenant,
        durable=durable,
        owner=owner,
        heartbeat_at=DbNow() if owner else None,
    )


def _lock_actor(user_pk: Any) -> Any:
    """The user, held until the open transaction ends: starts of one actor are counted one after the other."""
    users = get_user_model()
    using = write_alias()
    if router.db_for_write(users) == using:
        features = connections[using].features
        locked = users._default_manager.using(using).filter(pk=user_pk)
        locked.select_for_update(no_key=features.has_select_for_no_key_update).first()
    return fresh_user(user_pk)


def _claim_thread(run_input: AgentRunInput, run_id: uuid.UUID, user: Any, message: str) -> uuid.UUID:
    if run_input.thread_id is None:
        thread: Thread = Thread.objects.create(
            actor=user,
            actor_ref=str(user.pk),
            tenant=run_input.tenant,
            title=" ".join(message.split())[:TITLE_CHARS],
            default_agent=run_input.agent,
            persona=run_input.persona,
            active_run_id=run_id,
        )
        return thread.pk
    own = Thread.objects.alive().filter(
        pk=run_input.thread_id, actor=user, actor_kind="user", tenant=run_input.tenant
    )
    if own.filter(active_run_id=None).update(active_run_id=run_id, updated_at=DbNow()):
        return run_input.thread_id
    holder = own.values_list("active_run_id", flat=True).first()
    if holder is None:
        if own.exists():
            raise RunActive()
        raise NotVisible()
    if AgentRun.objects.filter(pk=holder).live().exists() and not settle_if_stale(holder):
        raise RunActive(runId=str(holder))
    if own.filter(active_run_id=None).update(active_run_id=run_id, updated_at=DbNow()):
        return run_input.thread_id
    if not own.filter(active_run_id=holder).update(active_run_id=run_id, updated_at=DbNow()):
        raise RunActive()
    return run_input.thread_id


def _check_limits(user: Any) -> None:
    waiting = Q(phase=AgentRun.Phase.WAITING)
    held = (
        AgentRun.objects.filter(actor=user)
        .live()
        .top_level()
        .aggregate(live=Count("pk", filter=~waiting), parked=Count("pk", filter=waiting))
    )
    if held["live"] >= agora_settings.MAX_LIVE_RUNS_PER_ACTOR:
        raise LimitExceeded(f"You have {held['live']} runs at work: wait for one to end or cancel one.")
    if held["parked"] >= agora_settings.MAX_PARKED_RUNS_PER_ACTOR:
        raise LimitExceeded(f"You have {held['parked']} waiting runs: have some decided or cancel them.")
    pending = ToolCall.objects.filter(run__actor=user).pending().count()
    if pending >= agora_settings.MAX_PENDING_CALLS_PER_ACTOR:
        raise LimitExceeded(f"{pending} of your calls wait for a decision: have some decided first.")
