"""Running a handler: nothing of the caller around it, and it can be stopped."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone, translation

from agora_agent.abort import AbortSignal
from agora_agent.agents.tool import ToolContext, tool
from agora_agent.exceptions import RunCancelled, ToolError

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


def context(abort: AbortSignal | None = None) -> ToolContext:
    return ToolContext(None, uuid.uuid4(), uuid.uuid4(), "c1", "r:c1", abort or AbortSignal())


def around() -> dict[str, str]:
    outside = REQUEST.get()
    REQUEST.set("the tool's")
    translation.activate("fr")
    return {
        "request": outside,
        "zone": timezone.get_current_timezone_name(),
        "thread": threading.current_thread().name,
    }


@tool
def look_around() -> dict[str, str]:
    """Say what is around."""
    seen = {"language": translation.get_language() or ""}
    return {**seen, **around()}


@tool
async def look_around_async() -> dict[str, str]:
    """Say what is around."""
    seen = {"language": translation.get_language() or ""}
    return {**seen, **around()}


@pytest.mark.parametrize("looker", [look_around, look_around_async])
def test_nothing_of_the_caller_is_around_a_handler_and_nothing_leaks_back(looker: Any) -> None:
    REQUEST.set("alice's")
    with translation.override("de"), timezone.override("Asia/Tokyo"):
        seen = looker.call(context(), {})
        assert translation.get_language() == "de"
    assert (seen["request"], seen["language"], seen["zone"]) == (
        "none",
        "en-us",
        timezone.get_default_timezone_name(),
    )
    assert REQUEST.get() == "alice's"


@tool
async def wait_for_ever(ctx: ToolContext) -> None:
    """Wait."""
    ctx.page_context["begun"].set()  # type: ignore[index]
    await asyncio.Event().wait()


def test_abort_cancels_an_async_handler_at_once() -> None:
    abort, begun = AbortSignal(), threading.Event()
    ctx = context(abort)
    ctx.page_context = {"begun": begun}
    aborting = threading.Thread(target=lambda: begun.wait(5) and abort.abort("cancelled"))
    aborting.start()
    before = time.monotonic()
    with pytest.raises(RunCancelled, match="cancelled"):
        wait_for_ever.call(ctx, {})
    assert time.monotonic() - before < 1
    aborting.join()


def test_async_handler_that_ignores_the_abort_is_left_to_finish() -> None:
    abort = AbortSignal()

    @tool
    async def stubborn() -> str:
        try:
            abort.abort("cancelled")
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return "finished nevertheless"
        return "never aborted"

    assert stubborn.call(context(abort), {}) == "finished nevertheless"


def test_sync_handler_sees_the_signal() -> None:
    abort = AbortSignal()
    abort.abort("cancelled")

    @tool
    def looks(ctx: ToolContext) -> bool:
        return ctx.abort_signal.aborted

    assert looks.call(context(abort), {}) is True


def test_handler_that_cancels_itself_has_failed() -> None:
    @tool
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ToolError):
        gives_up.call(context(), {})


@pytest.mark.parametrize("is_async", [True, False])
def test_handler_that_ends_the_process_has_failed(is_async: bool) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def leave_async() -> None:
        raise SystemExit(3)

    with pytest.raises(ToolError):
        tool(leave_async if is_async else leave).call(context(), {})


def test_what_a_handler_raises_comes_out_as_it_is() -> None:
    @tool
    async def fails() -> None:
        raise ZeroDivisionError("x")

    with pytest.raises(ZeroDivisionError):
        fails.call(context(), {})


@pytest.mark.django_db
def test_async_handler_works_on_the_callers_connection() -> None:
    get_user_model().objects.create(username="alice")

    @tool
    async def count() -> int:
        return await get_user_model().objects.acount()

    assert count.call(context(), {}) == 1


def test_components_go_where_the_context_says() -> None:
    shown: list[tuple[str, dict[str, Any]]] = []

    def emit(name: str, data: dict[str, Any], id: str | None = None) -> str:  # noqa: A002
        shown.append((name, data))
        return id or "new"

    @tool
    def chart(ctx: ToolContext) -> str:
        return ctx.emit_component("chart", {"points": [1]})

    ctx = context()
    assert chart.call(ctx, {}) == ""
    ctx.emit_component = emit
    assert chart.call(ctx, {}) == "new"
    assert shown == [("chart", {"points": [1]})]
