"""Arguments as one reader may see them: what the tool marks as sensitive is hidden."""

from __future__ import annotations

import logging
from typing import Any

from django.utils.translation import gettext as _

from agora_agent.agents import registry
from agora_agent.models import ToolCall

logger = logging.getLogger("agora_agent.admin")


def hidden_names(call: ToolCall) -> frozenset[str]:
    """Names of the arguments that the call's tool marks with ``redact``."""
    tool = _tool(call)
    return frozenset() if tool is None else frozenset(tool.redact)


def _tool(call: ToolCall) -> Any:
    agent = registry.get_agent(call.run.agent)
    return None if agent is None else registry.find_tool(agent, call.tool_name)


def _declared_order(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    """``arguments`` as the tool lists them; the stored form has them by name."""
    tool = _tool(call)
    names = list(tool.schema.get("properties", ())) if tool is not None else []
    ranked = sorted(arguments, key=lambda name: names.index(name) if name in names else len(names))
    return {name: arguments[name] for name in ranked}


def shown_arguments(call: ToolCall, *, unredacted: bool) -> dict[str, Any]:
    """The stored arguments; without ``unredacted``, marked ones replaced by a word. What fails to hide, hides."""
    arguments = _declared_order(call, call.input) if isinstance(call.input, dict) else {"": call.input}
    if unredacted:
        return arguments
    try:
        names = hidden_names(call)
    except Exception:
        logger.exception("The redaction of %s failed: its arguments are hidden.", call.pk)
        names = frozenset(arguments)
    return {name: _("(hidden)") if name in names else value for name, value in arguments.items()}
