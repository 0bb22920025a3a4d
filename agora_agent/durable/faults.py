"""Named points where a test ends the process as a kill -9 would; inert unless ``AGORA_FAULT`` is set."""

from __future__ import annotations

import itertools
import os

_armed, _, _nth = os.environ.get("AGORA_FAULT", "").partition(":")
_left = itertools.count(int(_nth or 1), -1)


def hit(name: str) -> None:
    """End the process if ``AGORA_FAULT`` is ``name`` (``name:3``: at the third time it is reached)."""
    if _armed and name == _armed and next(_left) == 1:
        os._exit(137)
