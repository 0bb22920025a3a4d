"""One durable turn against the physical floor, in one run: ``python benchmarks/turn.py [--turns 200]``.

A turn asks the model, runs three reads side by side, asks the model again and ends. The model and the tools take no
time, so what is left is the engine. The floor is what no durable engine can do without: seven commits of one row each
(start, two model calls, three tools, end) on the same database with the same settings. Prints one table.

``DATABASE_URL`` chooses the database; a temporary SQLite file (WAL, synchronous FULL) without it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
COMMITS_OF_A_TURN = 7


def configure(folder: str) -> None:
    """Minimal settings; the engine is driven by this thread, so that no thread's scheduling is measured."""
    import dj_database_url
    import django
    from django.conf import settings

    database = dj_database_url.parse(os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/bench.sqlite3")
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        }
    database["CONN_MAX_AGE"] = None
    settings.configure(
        SECRET_KEY="benchmark",
        DATABASES={"default": database},
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "agora_agent",
            "agora_agent.durable",
        ],
        USE_TZ=True,
        AGORA_AGENT={
            "DURABLE": True,
            "DISPATCHER": "worker",
            "MAX_LIVE_RUNS_PER_ACTOR": 10**9,
            "MODEL_PROVIDER": "agora_agent.providers.scripted.ScriptedModel",
        },
    )
    django.setup()


def declare() -> None:
    """An agent whose model asks for three reads, then answers."""
    from agora_agent import Agent, register, tool
    from agora_agent.providers.scripted import Reply, ScriptedModel

    @tool
    def look(place: int) -> int:
        """Look somewhere."""
        return place

    def script(request: object) -> Reply:
        if request.step == 0:  # type: ignore[attr-defined]
            return Reply(calls=[("look", {"place": place}) for place in range(3)])
        return Reply("Seen.")

    model = ScriptedModel(script, delay_seconds=0)
    register(Agent("bench", "Be quick.", tools=[look], public=True, provider=model))


def timed(work: object, times: int) -> list[float]:
    """Milliseconds of each call."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()  # type: ignore[operator]
        took.append((time.perf_counter() - began) * 1000)
    return took


def main() -> None:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=200)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder:
        configure(folder)
        from django.contrib.auth import get_user_model
        from django.core.management import call_command
        from django.db import connection

        from agora_agent.durable import get_engine
        from agora_agent.models import AgentRun
        from agora_agent.turn import runner
        from agora_agent.turn.runner import AgentRunInput

        call_command("migrate", verbosity=0)
        declare()
        user, _ = get_user_model().objects.get_or_create(username="bench")
        engine = get_engine()

        def turn() -> None:
            run_id = runner.get().start(AgentRunInput(agent="bench", message="look", user=user))
            while AgentRun.objects.filter(pk=run_id).live().exists():
                engine.run_due()

        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE bench_floor (body text)")

            def floor() -> None:
                for _ in range(COMMITS_OF_A_TURN):
                    cursor.execute("INSERT INTO bench_floor VALUES (%s)", ["x" * 300])

            timed(floor, 20)
            timed(turn, 20)
            floors, ours = timed(floor, turns), timed(turn, turns)
            cursor.execute("DROP TABLE bench_floor")
        statements = _statements(turn)
    print(f"{'workload':<24}{'backend':<12}{'ms median':>10}{'ms best':>9}{'x floor':>9}")
    for name, took in (("floor: 7 commits", floors), ("turn, 3 reads", ours)):
        ratio = statistics.median(took) / statistics.median(floors)
        print(
            f"{name:<24}{connection.vendor:<12}{statistics.median(took):>10.2f}{min(took):>9.2f}{ratio:>9.1f}"
        )
    print(f"statements of a turn: {statements}")


def _statements(turn: object) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        turn()  # type: ignore[operator]
    return len(captured)


if __name__ == "__main__":
    main()
