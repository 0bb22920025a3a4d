"""What the loop uses and does not import, put together."""

from __future__ import annotations

import uuid
from typing import Any

from agora_agent.governance import audit
from agora_agent.runners.assess import assess
from agora_agent.runners.model_step import record_usage
from agora_agent.runners.settle import settle
from agora_agent.turn.hooks import AgentLoopDeps


def _audit(run_id: uuid.UUID, action: str, content: dict[str, Any]) -> None:
    audit.record(run_id, action, content=content)


def loop_deps() -> AgentLoopDeps:
    """The loop's surroundings, the same under both runners."""
    return AgentLoopDeps(assess=assess, settle=settle, audit=_audit, record_usage=record_usage)
