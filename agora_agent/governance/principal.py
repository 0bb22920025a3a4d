"""Who decides, as a door knows it, and the guard that keeps tools, models and policies from deciding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from django.contrib.auth.models import AbstractUser

from agora_agent.exceptions import Forbidden

Via = Literal["rest", "admin", "ws", "command", "python"]


class Impersonated(Forbidden):
    """Nobody decides in somebody else's name: end the impersonation first."""

    code = "impersonated"


@dataclass(frozen=True, slots=True)
class Principal:
    """A person at a door. Only doors make one, from the identity that they have authenticated themselves."""

    user: AbstractUser
    via: Via
    auth_method: str = ""
    address: str = ""
    impersonator: AbstractUser | None = None
    tenant: str = ""

    @property
    def ref(self) -> str:
        """``user:<primary key>``."""
        return user_ref(self.user)


def user_ref(user: AbstractUser) -> str:
    """How rows name a user: ``user:<primary key>``. It outlives the account."""
    return f"user:{user.pk}"


# A thread-local, not a context variable: tools run in a fresh context, in the thread that called them.
_stack = threading.local()


@contextmanager
def acting() -> Iterator[None]:
    """Runners and this room set this around every tool, model and policy callback: nothing inside may decide."""
    _stack.depth = getattr(_stack, "depth", 0) + 1
    try:
        yield
    finally:
        _stack.depth -= 1


def is_acting() -> bool:
    """True while a tool, model or policy callback is on this thread's stack."""
    return getattr(_stack, "depth", 0) > 0
