"""The system prompt of an agent, wrapped by a persona."""

from __future__ import annotations

from typing import Any

from agora_agent.agents.agent import Agent, PromptContext


def system_prompt(agent: Agent, persona_name: str, user: Any, page_context: dict[str, Any] | None) -> str:
    """The agent's instructions; a persona's prompt wraps them (a callable gets them as ``base``)."""
    persona = next((item for item in agent.personas if item.name == persona_name), None)
    context = PromptContext(user=user, persona=persona, page_context=page_context, agent=agent.name)
    base = agent.instructions(context) if callable(agent.instructions) else agent.instructions
    if persona is None:
        return base
    if callable(persona.prompt):
        return str(persona.prompt(context, base))
    return f"{base}\n\n{persona.prompt}"
