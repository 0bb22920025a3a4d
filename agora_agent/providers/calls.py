"""Puts the fragments of tool calls together, from servers that number and name them each in their own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agora_agent.providers.base import RequestedCall
from agora_agent.providers.jsontext import BadJson, arguments, is_complete, plain

#: Why no call of an answer is executed, by its finish reason: a lenient parser could make valid but incomplete
#: arguments of a cut call, and a model that was cut may have wanted to say more before it acts.
CUT = {
    "length": "cut by the token limit",
    "content_filter": "stopped by the provider's content filter",
}


@dataclass
class _Draft:
    index: int | None
    id: str = ""
    name: str = ""
    text: str = ""
    #: Arguments that came as JSON instead of as text.
    value: Any = None
    has_value: bool = False

    @property
    def is_blank(self) -> bool:
        return not self.has_value and not self.text.strip()

    @property
    def is_complete(self) -> bool:
        return self.has_value or (not self.is_blank and is_complete(self.text))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class CallAssembler:
    """Collects fragments in the order of their arrival."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []

    def __bool__(self) -> bool:
        return bool(self._drafts)

    def feed(self, fragment: object) -> None:
        """One item of ``delta.tool_calls``."""
        if not isinstance(fragment, dict):
            return
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        index = fragment.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        call_id, name = _text(fragment.get("id")), _text(function.get("name"))
        given = function.get("arguments")
        more = bool(given.strip()) if isinstance(given, str) else given is not None
        draft = self._continued(index, call_id, name, more=more)
        if draft is None:
            draft = _Draft(index)
            self._drafts.append(draft)
        draft.id = draft.id or call_id
        draft.name = draft.name or name
        if isinstance(given, str):
            draft.text += given
        elif given is not None:
            draft.value, draft.has_value = given, True

    def _continued(self, index: int | None, call_id: str, name: str, *, more: bool) -> _Draft | None:
        """The call that a fragment goes on with; ``None`` if it begins another one.

        ``more``: it brings arguments. Nothing can follow complete ones, so such a fragment begins a call.
        """
        # Those of its index, from a server that counts. Some send a constant, so ids and names count as well.
        near = [draft for draft in self._drafts if index is None or draft.index == index]
        if not near:
            return None
        last = next((draft for draft in reversed(near) if call_id and draft.id == call_id), near[-1])
        if not name:
            # Some servers make up a new id for each fragment.
            begins = call_id not in ("", last.id) and more and last.is_complete
        elif call_id and last.id and call_id != last.id:
            begins = True
        elif not last.name:
            begins = False
        elif last.name != name:
            begins = True
        elif index is None and not call_id:
            begins = last.is_blank or last.is_complete
        else:
            # The server repeats id and name in each fragment, or two calls share index and id.
            begins = more and last.is_complete
        return None if begins else last

    def calls(self, finish_reason: str) -> list[RequestedCall]:
        """All calls, each with its arguments or with why they cannot be used."""
        return [self._finished(draft, CUT.get(finish_reason)) for draft in self._drafts]

    def _finished(self, draft: _Draft, cut: str | None) -> RequestedCall:
        value: Any = None
        error = None
        try:
            if draft.has_value:
                value = plain(draft.value)
                if not isinstance(value, dict):
                    value, error = None, "arguments are not a JSON object"
            else:
                value = arguments(draft.text)
        except BadJson as bad:
            error = str(bad)
        return RequestedCall(id=draft.id, name=draft.name, arguments=value, error=cut or error)
