"""The record of a request to stop a run."""

from __future__ import annotations

import uuid

from agora_agent.governance import audit
from agora_agent.governance.principal import Principal


def record_cancel(run_id: uuid.UUID, principal: Principal | None, by: str) -> None:
    """Record in the open transaction who asked for the run to stop, and at which door.

    Args:
        run_id: the run.
        principal: who, as the door knows them; None for a caller without one.
        by: the reference that such a caller gave.
    """
    content = {"by": by} if principal is None and by else {}
    audit.record(
        run_id, "cancel_requested", principal=principal, subject_ref=f"run:{run_id}", content=content
    )
