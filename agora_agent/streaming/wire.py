"""JSON text as it leaves the system: strict, on one line."""

from __future__ import annotations

import json
from typing import Any

from agora_agent.plain import MAX_SAFE_INTEGER, to_wire, utc

__all__ = ["MAX_SAFE_INTEGER", "dumps", "to_wire", "utc"]

# Line ends to some parsers, though not to SSE's own: escaped, nobody can mistake them.
_UNICODE_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def dumps(value: Any) -> str:
    """Strict JSON on one line: no NaN, and none of the characters that any parser takes for a line end."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNICODE_LINE_ENDS)
