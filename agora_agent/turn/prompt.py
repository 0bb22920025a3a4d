"""The system prompt of an agent, wrapped by a persona."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agora_agent.agents.agent import Agent, PromptContext


def system_prompt(agent: Agent, persona_name: str, user: Any, page_context: dict[str, Any] | None) -> str:
    """The agent's instructions; a persona's prompt follows them, or wraps them where it is a callable."""
    persona = agent.persona(persona_name) if persona_name else None
    context = PromptContext(user=user, persona=persona, page_context=page_context, agent=agent)
    base = agent.instructions(context) if callable(agent.instructions) else agent.instructions
    if persona is None or not persona.prompt:
        return base
    if callable(persona.prompt):
        return persona.prompt(replace(context, base=base))
    return f"{base}\n\n{persona.prompt}"
