"""What counts as a failure of host code, in words that can be stored."""

from __future__ import annotations

import asyncio

from agora_agent import codec
from agora_agent.exceptions import Fenced, RunCancelled

#: What leaves a function of the engine because a row is somebody else's.
LEFT = (Fenced, RunCancelled)


def is_error(error: BaseException) -> bool:
    """True for what ends a workflow or a step as failed. A library's cancellation is one, for nobody here has asked
    for it, and so is ``sys.exit()`` in a tool; subclasses of it are a host's way to end this process."""
    return isinstance(error, Exception | asyncio.CancelledError) or type(error) is SystemExit


def describe(error: BaseException) -> str:
    """The error's class and words, also where it has none or cannot say them."""
    try:
        words = codec.clean_text(str(error))
    except Exception:
        words = ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def backoff(attempts: int) -> float:
    """Seconds before another attempt."""
    return float(min(2 ** max(attempts - 1, 0), 60))
