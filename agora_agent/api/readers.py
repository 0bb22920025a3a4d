"""May this reader still read? Asked again while a stream is open, of the database as it is then."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.db import connections
from django.utils.crypto import constant_time_compare
from rest_framework.authentication import BasicAuthentication, SessionAuthentication
from rest_framework.request import Request, clone_request

from agora_agent.governance import shown
from agora_agent.governance.actors import Actor, resolve_actor
from agora_agent.governance.ownership import get_run
from agora_agent.governance.rights import fresh_user
from agora_agent.models import AgentRun

logger = logging.getLogger("agora_agent.api")


class Reader:
    """Who opened a stream, how they had proved it, and what they read."""

    def __init__(self, request: Request, actor: Actor, run: AgentRun) -> None:
        self._request = clone_request(request, request.method or "GET")
        self._authenticator = request.successful_authenticator
        self._user_pk = request.user.pk
        self._password_hash = _auth_hash(request.user)
        self._actor = actor
        self._run_id = run.pk
        #: False where frames are shown without what their tools mark with ``redact``.
        self.sees_all = shown.Reader(actor.user).sees_all_of(run)

    def may_read(self) -> bool:
        """True if everything that let the reader in still holds. Whatever cannot be found out is a no."""
        try:
            return self._may_read()
        except Exception as error:
            logger.info("reader of run %s is let go: %s", self._run_id, type(error).__name__)
            return False

    def _may_read(self) -> bool:
        user = fresh_user(self._user_pk)
        if user is not None:
            if not user.is_active or not self._is_signed_in(user):
                return False
            self._request.user = cast(Any, user)
        elif self._user_pk is not None:
            return False
        actor = resolve_actor(self._request)
        if actor is None or (actor.ref, actor.tenant) != (self._actor.ref, self._actor.tenant):
            return False
        person = fresh_user(actor.user.pk)
        run = get_run(person, self._run_id, actor.tenant)
        self.sees_all = shown.Reader(person).sees_all_of(run)
        return True

    def _is_signed_in(self, user: Any) -> bool:
        if isinstance(self._authenticator, SessionAuthentication):
            return self._session_holds(user)
        if self._authenticator is None or isinstance(self._authenticator, BasicAuthentication):
            # Hashing the password again each time would cost more than the stream.
            return constant_time_compare(self._password_hash, _auth_hash(user))
        found: Any = self._authenticator.authenticate(self._request)
        return found is not None and bool(found[0].pk == user.pk)

    def _session_holds(self, user: Any) -> bool:
        known = self._request._request.session
        session = type(known)(known.session_key)
        if session.get(SESSION_KEY) != user._meta.pk.value_to_string(user):
            return False
        stored = session.get(HASH_SESSION_KEY, "")
        hashes = [_auth_hash(user)]
        if hasattr(user, "get_session_auth_fallback_hash"):
            hashes.extend(user.get_session_auth_fallback_hash())
        return any(constant_time_compare(stored, known_hash) for known_hash in hashes)


def _auth_hash(user: Any) -> str:
    return str(user.get_session_auth_hash()) if hasattr(user, "get_session_auth_hash") else ""


class Questions:
    """Answers questions of event loops in one thread of this process, which ends when nobody has asked for a while.

    One thread, one connection, however many streams are open.
    """

    _LINGER_SECONDS = 0.5

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[tuple[Callable[[], bool], asyncio.Future[bool]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def ask(self, question: Callable[[], bool]) -> bool:
        """What ``question`` says."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._asked.put((question, answer))
            if self._thread is None or not self._thread.is_alive():  # also after a fork
                self._thread = threading.Thread(target=self._run, name="agora-stream-readers", daemon=True)
                self._thread.start()
        return await answer

    def _run(self) -> None:
        try:
            while True:
                try:
                    question, answer = self._asked.get(timeout=self._LINGER_SECONDS)
                except queue.Empty:
                    with self._lock:
                        if self._asked.empty():
                            self._thread = None
                            return
                    continue
                said = question()
                try:
                    answer.get_loop().call_soon_threadsafe(_settle, answer, said)
                except RuntimeError:
                    continue  # its loop is gone, and the reader with it
        finally:
            connections.close_all()


def _settle(answer: asyncio.Future[bool], said: bool) -> None:
    if not answer.done():
        answer.set_result(said)


questions = Questions()
