"""Arguments in the order in which their tool declares them, as one reader may see them."""

from __future__ import annotations

from typing import Any

from agora_agent.agents import registry
from agora_agent.governance.shown import Reader, shown
from agora_agent.models import ToolCall


def shown_arguments(call: ToolCall, reader: Reader) -> dict[str, Any]:
    """The stored arguments, without those that are hidden from ``reader``."""
    arguments = shown(call, reader).input
    return _declared_order(call, arguments) if isinstance(arguments, dict) else {"": arguments}


def _declared_order(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    """``arguments`` as the tool lists them; the stored form has them by name."""
    agent = registry.get_agent(call.run.agent)
    tool = None if agent is None else registry.find_tool(agent, call.tool_name)
    names = list(tool.schema.get("properties", ())) if tool is not None else []
    ranked = sorted(arguments, key=lambda name: names.index(name) if name in names else len(names))
    return {name: arguments[name] for name in ranked}
