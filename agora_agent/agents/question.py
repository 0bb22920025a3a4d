"""A question that a model, or a tool of kind "ask", puts to a person."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agora_agent.exceptions import ConfigurationError, InvalidInput

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Question:
    """One question of a set. The form shows ``options`` to choose from, and a text field if ``free_text``."""

    id: str
    text: str
    options: tuple[str, ...] = ()
    default: tuple[str, ...] = ()
    #: More than one option may be chosen.
    multiple: bool = False
    free_text: bool = False

    def __post_init__(self) -> None:
        for name in ("options", "default"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if problem := self._problem():
            raise ConfigurationError(f"Question {self.id!r}: {problem}")

    def _problem(self) -> str:
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            return "an id is 1 to 64 letters, digits, dashes or underscores."
        if not self.text.strip():
            return "it asks nothing."
        if len(set(self.options)) != len(self.options):
            return "an option is there twice."
        return self._objection(self.default)

    def _objection(self, values: tuple[str, ...]) -> str:
        if len(values) > 1 and not self.multiple:
            return "only one answer is allowed."
        if self.options and not self.free_text and (foreign := [v for v in values if v not in self.options]):
            return f"{foreign[0]!r} is not one of its options."
        return ""

    def check(self, values: tuple[str, ...] | list[str] | None) -> tuple[str, ...]:
        """The answer that counts: ``values``, or the default where there are none.

        Raises:
            InvalidInput: an answer that the question does not allow.
        """
        if values is None:
            return self.default
        if not all(isinstance(value, str) for value in values):
            raise InvalidInput(f"Question {self.id!r}: answers are text.", question=self.id)
        if objection := self._objection(tuple(values)):
            raise InvalidInput(f"Question {self.id!r}: {objection}", question=self.id)
        return tuple(values)

    def as_dict(self) -> dict[str, Any]:
        """The question as frames carry it."""
        return {
            "id": self.id,
            "text": self.text,
            "options": list(self.options),
            "default": list(self.default),
            "multiple": self.multiple,
            "freeText": self.free_text,
        }
