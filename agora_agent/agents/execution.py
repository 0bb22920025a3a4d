"""Runs a tool's function: nothing of the caller around it, async or not, stopped by the abort signal."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import async_to_sync

from agora_agent.abort import AbortSignal
from agora_agent.exceptions import RunCancelled, ToolError


def run_handler(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], abort: AbortSignal
) -> Any:
    """What ``handler`` returns. It runs in this thread, in a context of its own: no request, no language.

    Raises:
        RunCancelled: the abort signal cancelled an async handler. A sync one has to look at the signal itself.
    """
    return contextvars.Context().run(_run, handler, args, kwargs, abort)


def _run(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], abort: AbortSignal
) -> Any:
    try:
        result = handler(*args, **kwargs)
        if inspect.isawaitable(result):
            return async_to_sync(_await)(result, abort)
    except SystemExit as error:
        # Would end the worker's thread, and with it the run.
        raise ToolError("The tool tried to end the process.") from error
    return result


async def _await(awaitable: Awaitable[Any], abort: AbortSignal) -> Any:
    loop = asyncio.get_running_loop()
    task: asyncio.Future[Any] = asyncio.ensure_future(awaitable)
    forget = abort.on_abort(lambda: _cancel_from_anywhere(loop, task))
    try:
        return await task
    except asyncio.CancelledError:
        if abort.aborted:
            raise RunCancelled(abort.reason) from None
        # A BaseException: as it is, it would pass for control flow.
        raise ToolError("The tool cancelled its own work.") from None
    finally:
        forget()


def _cancel_from_anywhere(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
