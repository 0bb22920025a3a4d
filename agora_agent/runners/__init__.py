"""What the hooks mean: a turn in this process (inline) or on database checkpoints (durable)."""

from __future__ import annotations


def serve() -> None:
    """Let this process do the background work of agora_agent. Call it where a server process starts (``asgi.py``).

    Starts daemon threads: with the durable runner on the ``thread`` dispatcher, those that drive runs and recover
    what a dead process left; with either runner, the maintenance loop. Safe to call again; a forked child starts its
    own. Never call it from settings, migrations or tests.
    """
    from agora_agent.runners.maintenance import start_maintenance
    from agora_agent.runners.resolver import serve_engine

    serve_engine()
    start_maintenance()
