"""The folder that the demo keeps its database and its secret key in."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

DEFAULT = Path(__file__).resolve().parents[2] / ".demo"


def directory() -> Path:
    """``SHOP_STATE_DIR``, or ``.demo`` beside the example project; made if it is missing."""
    path = Path(os.environ.get("SHOP_STATE_DIR") or DEFAULT)
    path.mkdir(parents=True, exist_ok=True)
    return path


def secret_key() -> str:
    """``SECRET_KEY`` from the environment, else one that is made once, so that sessions outlive a restart."""
    given = os.environ.get("SECRET_KEY")
    if given:
        return given
    path = directory() / "secret_key"
    if not path.exists():
        draft = path.with_name(f"secret_key.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        # A server and a worker that start together must agree: the first link wins, the other reads it.
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()
