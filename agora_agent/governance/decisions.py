"""The one door through which people decide: everything that approves, rejects, settles or expires a call."""

from __future__ import annotations

import datetime as dt
import logging
from functools import partial
from typing import Any, Literal, get_args

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractUser
from django.db import transaction

from agora_agent import codec
from agora_agent.db import DbNow, database_now
from agora_agent.exceptions import (
    AgoraError,
    AlreadyDecided,
    Changed,
    Expired,
    Forbidden,
    InvalidInput,
    NotVisible,
    RunNotActive,
    WrongReply,
)
from agora_agent.governance.locking import lock_call, retrying
from agora_agent.governance.ownership import get_call, may_decide, may_settle
from agora_agent.governance.principal import Impersonated, Principal, is_acting
from agora_agent.governance.refusals import note_refusal
from agora_agent.governance.rights import fresh_user
from agora_agent.governance.standing import (
    Standing,
    is_by,
    last_settlement_of,
    outcome_of,
    settlement_of,
)
from agora_agent.governance.writing import conclude, conclude_settlement
from agora_agent.models import AgentRun, Decision, ToolCall, write_alias

logger = logging.getLogger("agora_agent.governance")

Verdict = Literal["approve", "reject", "answer", "skip"]
Outcome = Literal["again", "done", "failed"]

#: Whose calls a reply means before others of the same id.
_WAITING: dict[str, Any] = {"settle": (ToolCall.Status.INTERRUPTED,)}

MAX_REASON = 4096
MAX_LABEL = 64


def decide(
    principal: Principal,
    *,
    call_id: object,
    run_id: object = None,
    verdict: Verdict,
    reason: str = "",
    digest: str | None = None,
    round: int | None = None,  # noqa: A002
    answers: object = None,
    client_label: str = "",
) -> Standing:
    """Approve or reject a call that waits. The first decision wins; it is stored before anybody is told.

    Args:
        principal: who, as the door knows them.
        call_id: the provider's id of the call.
        run_id: its run; may be left out while only one waiting call has this id.
        verdict: what they say.
        reason: their words, stored, shown and told to the model.
        digest: of the arguments that they were shown.
        round: of the form that they were shown; a call that asks again has a new one.
        answers: replies to questions; an approval takes none.
        client_label: the client's own word for itself.

    Returns:
        The decision that stands. The same again by the same person has no second effect.

    Raises:
        NotVisible: no such call that they may see or decide.
        Ambiguous: several waiting calls have this id.
        Forbidden: not theirs to decide, or a tool, model or policy is deciding.
        RunNotActive: the run has ended.
        Expired: too late.
        WrongReply: an answer to an approval.
        Changed: they were shown something else.
        AlreadyDecided: somebody decided otherwise; ``details["decision"]`` stands.
        InvalidInput: reason or label too long.
    """
    if verdict not in get_args(Verdict):
        raise InvalidInput(f"There is no verdict {verdict!r}.")
    using = write_alias()

    def attempt() -> Standing | AgoraError:
        with transaction.atomic(using=using):
            call, person = _locked(call_pk, principal, using)
            if not may_decide(person, call, verdict):
                raise Forbidden
            said = _words(reason, client_label)
            now = database_now(using)
            if refusal := _standing_refusal(call, now, using):
                return refusal
            if answers is not None or verdict in ("answer", "skip") or not call.tier:
                raise WrongReply
            if (digest is not None and digest != call.digest) or round not in (None, call.round):
                raise Changed
            outcome = outcome_of(call)
            if outcome is not None:
                if is_by(outcome, person) and outcome.verdict == verdict:
                    return Standing.of(outcome, repeated=True)
                raise AlreadyDecided(decision=Standing.of(outcome).as_wire())
            decision = conclude(call, Decision.Verdict(verdict), now, using, principal, said)
            return Standing.of(decision)

    try:
        call_pk = _seen(principal, call_id, run_id, ToolCall.PENDING).pk
        return _answer(retrying(attempt, using))
    except AgoraError as refused:
        note_refusal(refused, principal, verdict, call_id, run_id)
        raise


def settle(
    principal: Principal,
    *,
    call_id: object,
    run_id: object = None,
    outcome: Outcome,
    output: Any = None,
    reason: str = "",
    client_label: str = "",
) -> Standing:
    """Say what became of a call whose outcome nobody knows: once for each time that it was launched.

    Args:
        principal: one of the call's approvers or a holder of ``settle_unknown``, never a requester.
        call_id: the provider's id of the call.
        run_id: its run; may be left out while only one interrupted call has this id.
        outcome: "again" runs it with the same idempotency key, "done" records ``output``, "failed" gives it up.
        output: what the tool would have returned.
        reason: how they know.
        client_label: the client's own word for itself.

    Returns:
        The settlement that stands. The same again by the same person has no second effect.

    Raises:
        NotVisible: no such call that they may see or settle.
        Ambiguous: several interrupted calls have this id.
        Forbidden: not theirs to settle, or a tool, model or policy is settling.
        RunNotActive: the run has ended.
        WrongReply: the outcome of the call is known.
        AlreadyDecided: somebody settled otherwise; ``details["decision"]`` stands.
        InvalidInput: reason or label too long, or an output that cannot be stored or has no place.
    """
    if outcome not in get_args(Outcome):
        raise InvalidInput(f"There is no outcome {outcome!r}.")
    using = write_alias()

    def attempt() -> Standing:
        with transaction.atomic(using=using):
            call, person = _locked(call_pk, principal, using)
            if not may_settle(person, call):
                raise Forbidden
            said = _words(reason, client_label)
            reply = _reply(outcome, output)
            interrupted = call.status == ToolCall.Status.INTERRUPTED
            # One that has been acted on stands for a client that asks again.
            standing = settlement_of(call) if interrupted else last_settlement_of(call)
            if standing is not None:
                if is_by(standing, person) and standing.reply == reply:
                    return Standing.of(standing, repeated=True)
                raise AlreadyDecided(decision=Standing.of(standing).as_wire())
            if not _is_alive(call.run):
                raise RunNotActive
            if not interrupted:
                raise WrongReply("Only a call whose outcome is unknown can be settled.")
            return Standing.of(conclude_settlement(call, reply, using, principal, said))

    try:
        call_pk = _seen(principal, call_id, run_id, _WAITING["settle"]).pk
        return retrying(attempt, using)
    except AgoraError as refused:
        note_refusal(refused, principal, "settle", call_id, run_id)
        raise


def require_call(
    principal: Principal, *, call_id: object, run_id: object = None, verdict: Verdict | Literal["settle"]
) -> None:
    """For a door that has found something wrong with a reply: may this person know that there is such a call?

    A refusal is noted, as that of a reply without a mistake.

    Raises:
        NotVisible, Ambiguous, Forbidden: as :func:`decide` and :func:`settle` answer.
    """
    try:
        _seen(principal, call_id, run_id, _WAITING.get(verdict, ToolCall.PENDING))
    except AgoraError as refused:
        note_refusal(refused, principal, verdict, call_id, run_id)
        raise


def expire_due(limit: int = 100) -> int:
    """Expire the calls whose time to decide is over, and wake their runs. Returns how many.

    One that cannot be expired is logged and does not hold up the others.
    """
    using = write_alias()
    due = (
        ToolCall.objects.using(using)
        .pending()
        .filter(expires_at__lte=DbNow())
        .order_by("expires_at")
        .values_list("pk", flat=True)[:limit]
    )
    expired = 0
    for call_pk in list(due):
        try:
            expired += retrying(partial(_expire, call_pk, using), using)
        except Exception:
            logger.exception("a call could not be expired", extra={"tool_call": str(call_pk)})
    return expired


def _expire(call_pk: Any, using: str) -> bool:
    with transaction.atomic(using=using):
        call = lock_call(call_pk, using)
        if call is None or not _is_alive(call.run):
            return False
        now = database_now(using)
        if not _is_overdue(call, now):
            return False
        conclude(call, Decision.Verdict.EXPIRE, now, using)
        return True


def _seen(principal: Principal, call_id: object, run_id: object, waiting: Any) -> ToolCall:
    person = _person(principal)
    call = get_call(person, call_id, run_id=run_id, tenant=principal.tenant, waiting=waiting)
    if principal.impersonator is not None:
        raise Impersonated
    return call


def _person(principal: Principal) -> AbstractUser:
    """The active human being behind ``principal``, loaded anew."""
    if not isinstance(principal, Principal):
        raise TypeError("A decision takes the Principal that a door has made, never a user or an id.")
    if is_acting():
        raise Forbidden("Tools, models and policies do not decide.")
    user = principal.user
    person = fresh_user(user.pk) if isinstance(user, get_user_model()) else None
    if person is None or person.is_active is not True:
        raise Forbidden("Only people with an active account decide.")
    return person


def _locked(call_pk: Any, principal: Principal, using: str) -> tuple[ToolCall, AbstractUser]:
    call = lock_call(call_pk, using)
    if call is None:
        raise NotVisible
    return call, _person(principal)


def _standing_refusal(call: ToolCall, now: dt.datetime, using: str) -> AgoraError | None:
    """Why nothing can be decided about the call any more; one that is overdue expires in the same go."""
    if call.status == ToolCall.Status.EXPIRED:
        return Expired()
    waits = call.status in ToolCall.PENDING
    if not _is_alive(call.run) and (waits or call.decided_at is None):
        return RunNotActive()
    if call.status == ToolCall.Status.CANCELLED:
        return RunNotActive()
    if waits and _is_overdue(call, now):
        conclude(call, Decision.Verdict.EXPIRE, now, using)
        return Expired()
    return None


def _is_alive(run: AgentRun) -> bool:
    return not run.is_terminal and run.cancel_requested_at is None


def _is_overdue(call: ToolCall, now: dt.datetime) -> bool:
    return call.status in ToolCall.PENDING and call.expires_at is not None and call.expires_at <= now


def _words(reason: object, client_label: object) -> tuple[str, str]:
    errors = {}
    texts = []
    for name, value, limit in (("reason", reason, MAX_REASON), ("clientLabel", client_label, MAX_LABEL)):
        if not isinstance(value, str):
            errors[name] = ["Write text."]
        elif len(text := codec.clean_text(value)) > limit:
            errors[name] = [f"At most {limit} characters."]
        else:
            texts.append(text)
    if errors:
        raise InvalidInput(errors=errors)
    reason_text, label = texts
    return reason_text, label


def _reply(outcome: str, output: Any) -> dict[str, Any]:
    if output is not None and outcome != "done":
        raise InvalidInput(errors={"output": ["Only a call that is done has an output."]})
    try:
        reply: dict[str, Any] = codec.roundtrip({"outcome": outcome, "output": output})
    except codec.Unencodable as error:
        raise InvalidInput(errors={"output": [str(error)]}) from error
    return reply


def _answer(result: Standing | AgoraError) -> Standing:
    """What the transaction has committed may be a refusal: an overdue call is expired and told so."""
    if isinstance(result, AgoraError):
        raise result
    return result
