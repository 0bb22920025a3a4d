"""Who holds a claim: ``boot:namespace:pid:start:nonce``. Other processes of the same host can see it is dead."""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from pathlib import Path


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """State letter and start time of a process; empty if there is none (or no /proc)."""
    # the command name is in parentheses and may hold spaces
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


@lru_cache(maxsize=1)
def host_prefix() -> str:
    """What the owners of this boot and this pid namespace begin with; empty where that cannot be known."""
    boot = _read("/proc/sys/kernel/random/boot_id").replace("-", "")
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot}:{namespace}:" if boot else ""


@lru_cache(maxsize=4)
def _identity(pid: int) -> str:
    return f"{host_prefix() or '::'}{pid}:{_process(pid)[1]}:"


def new_owner() -> str:
    """An owner for one claim of this process."""
    return _identity(os.getpid()) + secrets.token_hex(8)


def is_dead(owner: str) -> bool:
    """True if ``owner`` was a process of this host that certainly runs no more."""
    prefix = host_prefix()
    if not prefix or not owner.startswith(prefix):
        return False
    pid, start, _ = owner.removeprefix(prefix).split(":", 2)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # somebody else's, and alive
    # a host may hide the processes of other users: what cannot be read is not dead
    state, started = _process(int(pid))
    return state in ("Z", "X") or bool(state and started != start)
