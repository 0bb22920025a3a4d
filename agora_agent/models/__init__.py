"""The rows: what a run is, what it did, who decided, what was streamed."""

from django.db import router

from agora_agent.models.audit import AccessEntry, AuditEntry, AuditHead
from agora_agent.models.decision import Decision
from agora_agent.models.frame import Frame, Stream
from agora_agent.models.run import AgentRun, IdempotencyKey
from agora_agent.models.thread import Message, Thread
from agora_agent.models.tool_call import PendingApproval, ToolCall
from agora_agent.models.usage import Usage


def write_alias() -> str:
    """The database that holds all of the app's tables: transactions are opened on it."""
    return router.db_for_write(AgentRun)


__all__ = [
    "AccessEntry",
    "AgentRun",
    "AuditEntry",
    "AuditHead",
    "Decision",
    "Frame",
    "IdempotencyKey",
    "Message",
    "PendingApproval",
    "Stream",
    "Thread",
    "ToolCall",
    "Usage",
    "write_alias",
]
