"""What stands about a call: the decision that ended its round, the settlement of an unknown outcome."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from agora_agent.db import aware
from agora_agent.governance.principal import user_ref
from agora_agent.models import Decision, ToolCall, write_alias
from agora_agent.plain import utc

#: The word for a verdict on the wire, in frames and in answers.
STATUS = {
    Decision.Verdict.APPROVE: "approved",
    Decision.Verdict.REJECT: "rejected",
    Decision.Verdict.EXPIRE: "expired",
    Decision.Verdict.SETTLE: "settled",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """A decision as every door tells it. ``repeated``: the same person had said the same before."""

    status: str
    decided_by: str
    decided_at: dt.datetime
    via: str
    reason: str = ""
    repeated: bool = False

    @classmethod
    def of(cls, decision: Decision, *, repeated: bool = False) -> Standing:
        """From the stored row."""
        return cls(
            status=STATUS[Decision.Verdict(decision.verdict)],
            decided_by=who(decision),
            decided_at=decision.created_at,
            via=decision.via,
            reason=decision.reason,
            repeated=repeated,
        )

    def as_wire(self) -> dict[str, Any]:
        """``{status, decidedBy, decidedAt, via}``."""
        return {
            "status": self.status,
            "decidedBy": self.decided_by,
            "decidedAt": utc(aware(self.decided_at, write_alias())),
            "via": self.via,
        }


def who(decision: Decision) -> str:
    """The decider's user name; the reference that is left of an account that is gone; empty for nobody."""
    person = decision.principal
    return decision.principal_ref if person is None else person.get_username()


def is_by(decision: Decision, user: Any) -> bool:
    """True if it was this person's. By key and by reference: keys of deleted accounts may be given out again."""
    return decision.principal_id == user.pk and decision.principal_ref == user_ref(user)


def outcome_of(call: ToolCall) -> Decision | None:
    """The decision that ended the call's current round: the row that a wait reads when it is woken."""
    ended = Decision.objects.filter(tool_call=call.pk, round=call.round, is_outcome=True)
    found: Decision | None = ended.select_related("principal").order_by("-created_at", "-id").first()
    return found


def settlement_of(call: ToolCall) -> Decision | None:
    """What a person said became of the call's last launch: ``reply`` holds ``outcome`` and ``output``.

    A settlement of an earlier launch ("again") says nothing about this one.
    """
    last = last_settlement_of(call)
    if last is None or call.launched_at is None:
        return None
    return last if last.created_at >= call.launched_at else None


def last_settlement_of(call: ToolCall) -> Decision | None:
    """What a person last said became of the call, whichever launch it was about."""
    settled = Decision.objects.filter(tool_call=call.pk, verdict=Decision.Verdict.SETTLE)
    found: Decision | None = settled.select_related("principal").order_by("-created_at", "-id").first()
    return found
