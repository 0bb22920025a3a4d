"""Named points of the engine where tests make things go wrong. Inert otherwise.

``AGORA_FAULT=name`` (``name:3``: the third time) ends the process there as a kill -9 would; :func:`at` runs something
there, to bring about a race. The points, in the order of a run's life: ``after_claim``, ``before_checkpoint``,
``after_checkpoint``, ``after_dispatch``, ``after_task_claim``, ``after_task_body``, ``after_task_finish``,
``after_spawn``, ``before_park``, ``before_signal_commit``, ``before_hint``, ``after_consume``, ``before_end``,
``after_end``; and, after any of the engine's commits, ``before_acknowledge``.
Other rooms and tools under test may name their own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator

_actions: dict[str, Callable[[], None]] = {}
_armed = ""
_left = itertools.count(1, -1)


def arm(fault: str) -> None:
    """End this process at ``name``, or at the nth time that ``name:n`` is reached."""
    global _armed, _left
    _armed, _, nth = fault.partition(":")
    _left = itertools.count(int(nth or 1), -1)


def hit(name: str) -> None:
    """The code has reached ``name``."""
    if _armed and name == _armed and next(_left) == 1:
        os._exit(137)
    if _actions and name in _actions:
        _actions[name]()


@contextlib.contextmanager
def at(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Within the block, run ``action`` whenever ``name`` is reached, in whatever thread that is."""
    _actions[name] = action
    try:
        yield
    finally:
        del _actions[name]


arm(os.environ.get("AGORA_FAULT", ""))
