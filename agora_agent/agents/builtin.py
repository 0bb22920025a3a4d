"""Tools that every agent can have: handing a task to another agent, asking the person."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field

from agora_agent.agents.tool import Tool, tool
from agora_agent.exceptions import ToolError


@lru_cache(maxsize=256)
def delegate_tool(name: str, description: str) -> Tool:
    """The tool by which a model hands a task to the agent ``name``."""

    @tool(kind="agent", name=name, description=description or f"Hand a task to the agent {name}.")
    def delegate(
        task: Annotated[
            str, Field(min_length=1, description="What it should do, with everything that it must know.")
        ],
    ) -> Any:
        raise ToolError("A task is handed to an agent by the run, never by calling this function.")

    return delegate


class _Asked(BaseModel):
    id: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="A short name of your own for this question."),
    ]
    text: Annotated[str, Field(min_length=1, description="The question.")]
    options: Annotated[list[str], Field(description="Answers to choose from.")] = []
    default: Annotated[list[str], Field(description="What counts if the person does not answer.")] = []
    multiple: Annotated[bool, Field(description="More than one option may be chosen.")] = False
    free_text: Annotated[bool, Field(description="The person may write an answer of their own.")] = False


@tool(kind="ask", name="ask", description="Ask the person, and wait for the answers.")
def ask(
    questions: Annotated[list[_Asked], Field(min_length=1, max_length=10)],
    preamble: Annotated[str, Field(description="What the person should know first.")] = "",
) -> Any:
    """Questions are put by the run, never by calling this function."""
    raise ToolError("Questions are put by the run, never by calling this function.")
