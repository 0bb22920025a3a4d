"""Refused attempts to decide leave an access entry."""

from __future__ import annotations

from agora_agent.exceptions import AgoraError
from agora_agent.governance import audit
from agora_agent.governance.principal import Principal

#: Answers that refuse an attempt, rather than a slip of the pen: these leave an access entry.
_REFUSED = {403, 404, 409, 410}


def note_refusal(
    refused: AgoraError, principal: Principal, verdict: str, call_id: object, run_id: object = None
) -> None:
    """Note a refused attempt. For doors, where they refuse before :func:`decide` or :func:`settle` is asked."""
    if refused.status_code not in _REFUSED:
        return
    content = {"code": refused.code, "verdict": verdict, "run": str(run_id or "")[:64]}
    audit.access(
        "decision_refused", principal=principal, subject_ref=f"call:{str(call_id)[:64]}", content=content
    )
