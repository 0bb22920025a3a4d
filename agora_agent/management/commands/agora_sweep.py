"""``manage.py agora_sweep``: settle what dead processes have left."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections

from agora_agent.durable import get_engine
from agora_agent.exceptions import ConfigurationError
from agora_agent.runners.maintenance import maintain


class Command(BaseCommand):
    """For deployments whose processes do not sweep themselves: a broker's, or a cron job."""

    help = "Takes over runs and steps of dead processes, sends lost hints again, expires what nobody decided."

    def add_arguments(self, parser: CommandParser) -> None:
        """Once or for good."""
        parser.add_argument("--loop", action="store_true", help="Go on until SIGTERM or SIGINT.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep, and say what changed."""
        try:
            get_engine()
        except ConfigurationError as error:
            raise CommandError(error.message) from error
        stop = threading.Event()
        if not options["loop"]:
            if self._sweep():
                raise CommandError("some rows could not be settled: see the log")
            return
        before = {
            number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            while not stop.is_set():
                close_old_connections()
                self._sweep()
                stop.wait(get_engine().sweep_seconds)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _sweep(self) -> list[str]:
        maintain()
        report = asdict(get_engine().sweep())
        errors: list[str] = report.pop("errors")
        changed = ", ".join(f"{name} {count}" for name, count in report.items() if count)
        self.stdout.write(f"agora_sweep: {changed or 'nothing to do'}")
        return errors
