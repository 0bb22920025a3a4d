"""Carries wake-ups between processes over the project's channel layer, if it has one that crosses them.

The layer is a hint, never a source: it may lose, delay or refuse every message and readers only wait for the
next poll.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

logger = logging.getLogger("agora_agent.streaming")

GROUP = "agora_agent.streams"
MESSAGE = "agora_agent.moved"
_ALIAS = "default"
_SEND_SECONDS = 2.0
_RETRY_SECONDS = 5.0
# A group forgets its members after a day by default.
_REJOIN_SECONDS = 3600.0
_COMPLAIN_SECONDS = 60.0


def _make_layer() -> Any | None:
    """A layer of our own (a shared one refuses to receive on two event loops), or None."""
    if _ALIAS not in (getattr(settings, "CHANNEL_LAYERS", None) or {}):
        return None
    try:
        from channels.layers import (  # type: ignore[import-untyped]
            InMemoryChannelLayer,
            channel_layers,
        )

        made = channel_layers.make_backend(_ALIAS)
    except Exception:
        logger.warning("the channel layer cannot be used: streams are polled instead", exc_info=True)
        return None
    return None if isinstance(made, InMemoryChannelLayer) else made


class Bridge:
    """One daemon thread with an event loop of its own, started by the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._layer: Any = None
        self._pending: set[str] = set()
        self._complained: dict[str, float] = {}
        self._work: set[Future[None]] = set()
        self._listening: Callable[[uuid.UUID], None] | None = None

    def tell(self, stream_id: uuid.UUID) -> None:
        """Send a wake-up. Returns at once; wake-ups for the same stream that queue up are sent once."""
        loop = self._start()
        if loop is None:
            return
        with self._lock:
            known = str(stream_id) in self._pending
            self._pending.add(str(stream_id))
        if not known:
            self._spawn(self._send(str(stream_id)), loop)

    def listen(self, listener: Callable[[uuid.UUID], None]) -> None:
        """Hand each wake-up of other processes to ``listener``, from now on."""
        loop = self._start()
        if loop is None:
            return
        with self._lock:
            if self._listening is not None:
                return
            self._listening = listener
        self._spawn(self._receive(listener), loop)

    def forget(self) -> None:
        """Read the settings again at the next use."""
        with self._lock:
            self._pid = 0

    def _start(self) -> asyncio.AbstractEventLoop | None:
        if not getattr(settings, "CHANNEL_LAYERS", None):
            return None
        with self._lock:
            if self._pid == os.getpid():
                return self._loop
            # First use, or the first after a fork: threads do not survive one.
            self._pid, self._loop, self._listening = os.getpid(), None, None
            self._pending = set()
            self._layer = _make_layer()
            if self._layer is not None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="agora-stream-layer", daemon=True
                ).start()
            return self._loop

    def _spawn(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        self._work.add(future)
        future.add_done_callback(self._work.discard)

    async def _send(self, stream_id: str) -> None:
        with self._lock:
            self._pending.discard(stream_id)
            layer = self._layer
        try:
            message = {"type": MESSAGE, "stream": stream_id}
            await asyncio.wait_for(layer.group_send(GROUP, message), _SEND_SECONDS)
        except Exception as error:
            self._complain("wake-ups are not sent", error)

    async def _receive(self, listener: Callable[[uuid.UUID], None]) -> None:
        layer = self._layer
        while layer is self._layer:
            try:
                channel = await layer.new_channel()
                await self._receive_on(layer, channel, listener)
            except Exception as error:
                self._complain("wake-ups are not received", error)
                await asyncio.sleep(_RETRY_SECONDS)

    def _complain(self, what: str, error: Exception) -> None:
        """Once a minute: a layer that is down fails for every frame."""
        now = time.monotonic()
        if now - self._complained.get(what, float("-inf")) >= _COMPLAIN_SECONDS:
            self._complained[what] = now
            logger.warning("%s, streams are polled: %s", what, type(error).__name__, exc_info=error)

    async def _receive_on(self, layer: Any, channel: str, listener: Callable[[uuid.UUID], None]) -> None:
        clock = asyncio.get_running_loop().time
        joined = float("-inf")
        while layer is self._layer:
            if clock() - joined >= _REJOIN_SECONDS:
                await layer.group_add(GROUP, channel)
                joined = clock()
            try:
                message = await asyncio.wait_for(layer.receive(channel), _REJOIN_SECONDS)
                listener(uuid.UUID(message["stream"]))
            except (TimeoutError, KeyError, TypeError, ValueError):
                continue


bridge = Bridge()


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "CHANNEL_LAYERS":
        bridge.forget()


setting_changed.connect(_forget, dispatch_uid="agora_agent.streaming.layer")
