"""One event loop per process, in a daemon thread, for everything that talks to models."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger("agora_agent.providers")

_STOP_SECONDS = 2.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_closers: list[Callable[[], Awaitable[None]]] = []
_inherited: list[Any] = []


def loop() -> asyncio.AbstractEventLoop:
    """The running loop of this process, started at first use; a forked child starts its own."""
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():
            ready = threading.Event()
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(
                target=_serve, args=(_loop, ready), name="agora-providers", daemon=True
            )
            _thread.start()
            ready.wait()
        return _loop


def _serve(served: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
    asyncio.set_event_loop(served)
    served.call_soon(ready.set)
    try:
        served.run_forever()
    finally:
        served.close()


def on_shutdown(closer: Callable[[], Awaitable[None]]) -> None:
    """Await ``closer()`` in the loop before it stops."""
    _closers.append(closer)


def shutdown() -> None:
    """Stop the loop and close what lives in it. The next use starts a new one."""
    global _loop, _thread
    with _lock:
        stopped, thread = _loop, _thread
        _loop = _thread = None
    if stopped is None or thread is None or not thread.is_alive():
        return
    closing = asyncio.run_coroutine_threadsafe(_close(), stopped)
    try:
        closing.result(_STOP_SECONDS)
    except Exception:
        logger.warning("Connections to models could not be closed in time", exc_info=True)
    stopped.call_soon_threadsafe(stopped.stop)
    thread.join(_STOP_SECONDS)


async def _close() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for closer in _closers:
        await closer()
    await asyncio.get_running_loop().shutdown_asyncgens()


def _forget_after_fork() -> None:
    global _loop, _thread, _lock
    # Kept alive: collecting it would close file descriptors that the parent's selector still uses.
    _inherited.append((_loop, _thread))
    _loop = _thread = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(shutdown)
