"""Who sees what, and who may decide what: the questions that every door asks."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet

from agora_agent import codec
from agora_agent.db import DbNow
from agora_agent.exceptions import Ambiguous, NotVisible
from agora_agent.governance.principal import user_ref
from agora_agent.governance.rights import DECIDE_ANY, SETTLE_UNKNOWN, VIEW_ALL_RUNS, has_perm, holds
from agora_agent.models import AgentRun, Thread, ToolCall

#: Verdicts after which nothing runs.
REFUSALS = ("reject", "skip")

_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CANDIDATES = 50


def owns(user: Any, owned: AgentRun | Thread | ToolCall) -> bool:
    """True if ``owned`` belongs to ``user``, by foreign key. A row whose owner is gone belongs to nobody."""
    row = owned.run if isinstance(owned, ToolCall) else owned
    return user.pk is not None and row.actor_id == user.pk and row.actor_kind == "user"


def requesters(run: AgentRun) -> frozenset[str]:
    """Everybody who counts as having asked for what the run does: none of them authorises it."""
    actor = set() if run.actor_id is None else {f"{run.actor_kind}:{run.actor_id}"}
    return frozenset(run.requesters or ()) | actor


def visible_threads(user: Any, tenant: str = "") -> QuerySet[Thread]:
    """Threads that ``user`` may read: their own; everybody's for holders of ``view_all_runs``."""
    return Thread.objects.alive().filter(_reach(user, tenant))


def visible_runs(user: Any, tenant: str = "") -> QuerySet[AgentRun]:
    """Runs that ``user`` may read: their own; everybody's for holders of ``view_all_runs``."""
    return AgentRun.objects.filter(_reach(user, tenant))


def visible_calls(user: Any, tenant: str = "") -> QuerySet[ToolCall]:
    """Tool calls of the runs that ``user`` may read."""
    return ToolCall.objects.filter(_reach(user, tenant, "run__"))


def get_thread(user: Any, thread_id: object, tenant: str = "") -> Thread:
    """The thread, if ``user`` may read it.

    Raises:
        NotVisible: unknown, malformed, or somebody else's.
    """
    thread: Thread = _get(visible_threads(user, tenant), thread_id)
    return thread


def get_run(user: Any, run_id: object, tenant: str = "") -> AgentRun:
    """The run, if ``user`` may read it.

    Raises:
        NotVisible: unknown, malformed, or somebody else's.
    """
    run: AgentRun = _get(visible_runs(user, tenant), run_id)
    return run


def get_call(
    user: Any,
    call_id: object,
    *,
    run_id: object = None,
    tenant: str = "",
    waiting: Sequence[str] = ToolCall.PENDING,
) -> ToolCall:
    """The call that ``user`` means by the provider's ``call_id``, among those that they may see or decide.

    Without ``run_id`` a call whose status is one of ``waiting`` is meant before one that waits no more.

    Raises:
        NotVisible: unknown, malformed, or not theirs to see.
        Ambiguous: several calls that wait have this id.
    """
    if not isinstance(call_id, str) or not _CALL_ID.fullmatch(call_id):
        raise NotVisible
    named = ToolCall.objects.filter(call_id=call_id)
    if run_id is not None:
        named = named.filter(run_id=_uuid(run_id))
    seen = _known(user, named, tenant).select_related("run").order_by("-created_at", "-id")
    found = [call for call in seen.filter(status__in=waiting)[:_CANDIDATES] if call.call_id == call_id]
    if len(found) > 1:
        found = [call for call in found if may_decide(user, call)] or found
    if len(found) > 1:
        raise Ambiguous
    found = found or [call for call in seen[:_CANDIDATES] if call.call_id == call_id]
    if not found:
        raise NotVisible
    return found[0]


def may_decide(user: Any, call: ToolCall, verdict: str = "approve") -> bool:
    """True if this verdict on this call is the user's to give.

    *confirm*: the run's actor; a holder of ``decide_any_toolcall`` may refuse in their place. *authorise*: whom
    ``call.approver`` names, or a holder of ``decide_any_toolcall``; never a requester, superusers included.
    """
    if user.is_active is not True:
        return False
    if call.tier == ToolCall.Tier.AUTHORISE:
        return _is_second_person(user, call) and _is_approver(user, call)
    return owns(user, call) or (verdict in REFUSALS and has_perm(user, DECIDE_ANY))


def may_settle(user: Any, call: ToolCall) -> bool:
    """True if the user may say what became of a call whose outcome nobody knows: never a requester."""
    if user.is_active is not True or not _is_second_person(user, call):
        return False
    return has_perm(user, SETTLE_UNKNOWN) or (
        call.tier == ToolCall.Tier.AUTHORISE and _is_approver(user, call)
    )


def can_see_call(user: Any, call: ToolCall, tenant: str = "") -> bool:
    """True if the user may see the call and its card: as reader of its run, or as one who may be asked."""
    return _known(user, ToolCall.objects.filter(pk=call.pk), tenant).exists()


def inbox(user: Any, tenant: str = "") -> QuerySet[ToolCall]:
    """What waits for ``user`` to decide, oldest first, with run, thread and actor loaded."""
    pending = (
        ToolCall.objects.pending()
        .filter(run__tenant=tenant, run__cancel_requested_at=None)
        .filter(Q(expires_at=None) | Q(expires_at__gt=DbNow()))
    )
    if not _is_somebody(user):
        return pending.none()
    asked = Q(tier=ToolCall.Tier.AUTHORISE) & _approvers(user, pending)
    own = Q(run__actor=user.pk) | Q(run__requesters__contains=codec.encode(user_ref(user)))
    requested = {
        call.run_id
        for call in pending.filter(asked & own).select_related("run")
        if not _is_second_person(user, call)
    }
    confirm = ~Q(tier=ToolCall.Tier.AUTHORISE) & Q(run__actor=user.pk, run__actor_kind="user")
    return (
        pending.filter(confirm | (asked & ~Q(run__in=requested)))
        .select_related("run__thread", "run__actor")
        .order_by("created_at", "id")
    )


def _is_somebody(user: Any) -> bool:
    return user.pk is not None and user.is_active is True


def _is_second_person(user: Any, call: ToolCall) -> bool:
    return user_ref(user) not in requesters(call.run)


def _is_approver(user: Any, call: ToolCall) -> bool:
    return holds(user, call.approver) or has_perm(user, DECIDE_ANY)


def _approvers(user: Any, calls: QuerySet[ToolCall]) -> Q:
    """Those of ``calls`` in *authorise* whose approvers include ``user``; requesters are not looked at."""
    authorise = Q(tier=ToolCall.Tier.AUTHORISE)
    if has_perm(user, DECIDE_ANY):
        return authorise
    named = calls.filter(authorise).order_by().values_list("approver", flat=True).distinct()
    return authorise & Q(approver__in=[approver for approver in named if holds(user, approver)])


def _known(user: Any, calls: QuerySet[ToolCall], tenant: str) -> QuerySet[ToolCall]:
    if not _is_somebody(user):
        return calls.none()
    calls = calls.filter(run__tenant=tenant)
    known = _reach(user, tenant, "run__") | _approvers(user, calls)
    if has_perm(user, DECIDE_ANY):
        known |= ~Q(tier=ToolCall.Tier.NONE)
    if has_perm(user, SETTLE_UNKNOWN):
        known |= Q(status=ToolCall.Status.INTERRUPTED)
    return calls.filter(known)


def _reach(user: Any, tenant: str, prefix: str = "") -> Q:
    if not _is_somebody(user):
        return Q(pk__in=[])
    reach = Q(**{f"{prefix}tenant": tenant})
    if has_perm(user, VIEW_ALL_RUNS):
        return reach
    return reach & Q(**{f"{prefix}actor": user.pk, f"{prefix}actor_kind": "user"})


def _get(rows: QuerySet[Any], key: object) -> Any:
    row = rows.filter(pk=_uuid(key)).first()
    if row is None:
        raise NotVisible
    return row


def _uuid(value: object) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        found = uuid.UUID(value)  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):
        raise NotVisible from None
    if str(found) != str(value).lower():  # braces and other spellings are not ids of ours
        raise NotVisible
    return found
