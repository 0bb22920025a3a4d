"""``manage.py agora_worker``: drive runs in the foreground until told to stop."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agora_agent.conf import agora_settings
from agora_agent.durable import get_engine
from agora_agent.exceptions import ConfigurationError
from agora_agent.runners.maintenance import start_maintenance


class Command(BaseCommand):
    """Polls the database; needs no broker. Run as many as you like."""

    help = "Drives durable runs and executes their steps until SIGTERM or SIGINT."

    def add_arguments(self, parser: CommandParser) -> None:
        """What this worker takes on."""
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="Serve only this queue (repeat for several). Default: all.",
        )
        parser.add_argument("--threads", type=int, help="How many runs and steps at once.")
        parser.add_argument(
            "--grace",
            type=float,
            default=25.0,
            metavar="SECONDS",
            help="How long to wait for what runs when told to stop. Default: 25.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until a signal comes, then let what runs end and give up the rest."""
        try:
            engine = get_engine()
        except ConfigurationError as error:
            raise CommandError(error.message) from error
        if options["queues"]:
            engine.queues = set(options["queues"])
        if options["threads"]:
            engine.threads = options["threads"]
        stop = threading.Event()
        before = {
            number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            engine.serve(poll_seconds=agora_settings.WORKER_POLL_SECONDS)
            start_maintenance()
            queues = ", ".join(sorted(engine.queues)) if engine.queues else "all"
            self.stdout.write(f"agora_worker: {engine.threads} threads, queues: {queues}")
            stop.wait()
            self.stdout.write("agora_worker: stopping")
            if not engine.stop(options["grace"]):
                self.stdout.write("agora_worker: gave up what was still running")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
