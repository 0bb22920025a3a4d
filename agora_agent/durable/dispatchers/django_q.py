"""Hints as django-q2 messages. A message carries one id as text, keeps no result and never raises."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agora_agent.durable.workflow import Engine

logger = logging.getLogger("agora_agent.durable")


class DjangoQDispatcher:
    """One message for each hint, to the default cluster. Needs the extra ``q2`` and a running ``qcluster``.

    Recovery is the sweeper's, not the broker's: run ``manage.py agora_sweep --loop`` beside the clusters.
    """

    embedded = False
    pulls = False
    immediate = False

    def bind(self, engine: Engine) -> None:
        """Nothing to remember: the message's receiver asks for its own process's engine."""

    def hint(self, kind: Literal["run", "task"], row_id: uuid.UUID, queue: str) -> None:
        """Enqueue; a broker that is down is logged, and the sweeper sends the hint again."""
        from django_q.tasks import async_task  # type: ignore[import-untyped]

        try:
            async_task(f"{__name__}.on_{kind}", str(row_id), save=False, ack_failure=True)
        except Exception:
            logger.warning(
                "a hint could not be sent", exc_info=True, extra={"kind": kind, "row": str(row_id)}
            )


def on_run(row_id: str) -> None:
    """Drive a run."""
    _execute("run", row_id)


def on_task(row_id: str) -> None:
    """Execute a task."""
    _execute("task", row_id)


def _execute(kind: Literal["run", "task"], row_id: str) -> None:
    from agora_agent.durable import get_engine

    try:
        get_engine().execute(kind, uuid.UUID(row_id))
    except Exception:
        logger.exception("a hint came to nothing", extra={"kind": kind, "row": row_id})
