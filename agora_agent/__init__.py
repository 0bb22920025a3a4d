"""Governed AI agent runs for Django. Names are imported lazily: importing this package loads no models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from agora_agent.agents.agent import Agent, Persona
    from agora_agent.agents.question import Question
    from agora_agent.agents.registry import register
    from agora_agent.agents.tool import ToolContext, tool
    from agora_agent.client.frames import decode_frame
    from agora_agent.conf import agent_durable
    from agora_agent.durable.workflow import Engine
    from agora_agent.exceptions import ToolError, is_replay_integrity_error
    from agora_agent.governance.principal import Principal
    from agora_agent.runners import serve
    from agora_agent.turn.runner import AgentRunInput, Decision, ElicitationReply

_NAMES = {
    "Agent": "agora_agent.agents.agent",
    "AgentRunInput": "agora_agent.turn.runner",
    "Decision": "agora_agent.turn.runner",
    "ElicitationReply": "agora_agent.turn.runner",
    "Engine": "agora_agent.durable.workflow",
    "Persona": "agora_agent.agents.agent",
    "Principal": "agora_agent.governance.principal",
    "Question": "agora_agent.agents.question",
    "ToolContext": "agora_agent.agents.tool",
    "ToolError": "agora_agent.exceptions",
    "agent_durable": "agora_agent.conf",
    "decode_frame": "agora_agent.client.frames",
    "is_replay_integrity_error": "agora_agent.exceptions",
    "register": "agora_agent.agents.registry",
    "serve": "agora_agent.runners",
    "tool": "agora_agent.agents.tool",
}

__all__ = [
    "Agent",
    "AgentRunInput",
    "Decision",
    "ElicitationReply",
    "Engine",
    "Persona",
    "Principal",
    "Question",
    "ToolContext",
    "ToolError",
    "__version__",
    "agent_durable",
    "decode_frame",
    "is_replay_integrity_error",
    "register",
    "serve",
    "tool",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
