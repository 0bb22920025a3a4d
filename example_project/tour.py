"""``make tour``: one governed turn through a kill -9 of everything. Exit 0 only if all it shows is true."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import demo

WIDTH = 80
AMOUNT = "12.50"
STREAM_SECONDS = 30


class Untrue(Exception):
    """Something that the tour shows is not so."""


def check(truth: bool, claim: str) -> None:
    """Print ``claim`` if it holds, else end the tour."""
    if not truth:
        raise Untrue(claim)
    print(f"  ok  {claim}")


def title(text: str) -> None:
    """A step of the tour."""
    print(f"\n-- {text} {'-' * max(0, WIDTH - 4 - len(text))}", flush=True)


@dataclass
class Frame:
    """One server-sent event."""

    id: int | None
    event: str
    data: dict[str, Any]


@dataclass
class Shop:
    """The server and the worker, as two processes that can be killed."""

    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start both and wait for the server."""
        server = demo.server("127.0.0.1", self.port)
        worker = demo.spawn(demo.python(*demo.WORKERS["worker"]), stdout=subprocess.DEVNULL)
        self.processes = [server, worker]
        demo.wait_until_listening(self.base, server, threading.Event())
        print(f"  server is process {server.pid}, worker is process {worker.pid}")

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
        for process in self.processes:
            check(process.wait(10) == -signal.SIGKILL, f"process {process.pid} is dead")

    def stop(self) -> None:
        """The polite way, at the end."""
        demo.stop(self.processes)

    def open(
        self, user: str, path: str, body: dict[str, Any] | None = None, accept: str = "application/json"
    ) -> Any:
        """A request as ``user`` with HTTP Basic."""
        token = base64.b64encode(f"{user}:demo".encode()).decode()
        request = urllib.request.Request(
            self.base + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {token}",
                "Accept": accept,
                "Content-Type": "application/json",
            },
        )
        return urllib.request.urlopen(request, timeout=STREAM_SECONDS)

    def call(self, user: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request."""
        try:
            with self.open(user, path, body) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")


def frames(response: Any) -> Iterator[Frame]:
    """The frames of a stream, as they arrive."""
    number: int | None = None
    event, data = "", []
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data:
                yield Frame(number, event, json.loads("\n".join(data)))
            number, event, data = None, "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            number = int(value)
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)


class Printer:
    """Prints a stream: text runs on, everything else is a line of its own."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.text = ""
        self._column = 0

    def show(self, frame: Frame) -> None:
        """Print one frame and keep its number."""
        if frame.id is not None:
            self.numbers.append(frame.id)
        if not frame.event:
            self._delta(frame.data["delta"])
            return
        self.line()
        number = "" if frame.id is None else str(frame.id)
        summary = json.dumps(frame.data, ensure_ascii=False)
        print(f"{number:>4}  {frame.event:<12}{clip(summary, WIDTH - 18)}", flush=True)

    def line(self) -> None:
        """End a line of running text."""
        if self._column:
            print()
            self._column = 0

    def _delta(self, delta: str) -> None:
        self.text += delta
        for character in delta:
            if not self._column:
                print(" " * 6, end="")
                self._column = 6
            if character == "\n" or (character == " " and self._column > WIDTH - 12):
                self.line()
                continue
            print(character, end="")
            self._column += 1
        sys.stdout.flush()


def clip(text: str, width: int) -> str:
    """``text`` in ``width`` columns."""
    return text if len(text) <= width else text[: width - 1] + "…"


def table(rows: list[tuple[str, ...]], head: tuple[str, ...]) -> None:
    """Columns as wide as they must be; the last takes what is left."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    last = WIDTH - sum(widths) - 2 * len(widths) - 2
    for row in [head, tuple("-" * width for width in [*widths, last]), *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  " + "  ".join([*cells, clip(row[-1], last)]).rstrip())


def open_database() -> str:
    """Set Django up on the tour's database and give it an order that nobody has refunded yet."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backoffice.settings")
    django.setup()
    from django.contrib.auth import get_user_model
    from django.utils import timezone
    from shop.models import Order

    number = 3001
    while Order.objects.filter(number=str(number)).exists():
        number += 1
    alice = get_user_model().objects.get(username="alice")
    Order.objects.create(
        number=str(number), customer=alice, status="delivered", total="62.30", placed_on=timezone.now().date()
    )
    return str(number)


def refunds(number: str) -> list[dict[str, Any]]:
    """The refund rows of the order, read from the database itself."""
    from django.db import connection
    from shop.models import Refund

    rows = list(
        Refund.objects.filter(order__number=number).values("amount", "idempotency_key", "approved_by")
    )
    connection.close()
    return rows


def tour(shop: Shop) -> None:
    """The whole story."""
    title("A server and a worker, two processes, one database")
    demo.prepare()
    order = open_database()
    shop.start()

    title("alice asks; the answer streams")
    message = f"Please refund {AMOUNT} EUR of order {order} because the teapot arrived chipped"
    print(
        textwrap.fill(f"alice: {message}", WIDTH - 2, initial_indent="  ", subsequent_indent=" " * 9) + "\n"
    )
    before = Printer()
    call: dict[str, Any] = {}
    run_id = ""
    with shop.open(
        "alice", "/agent/chat", {"message": message, "agent": "support"}, "text/event-stream"
    ) as stream:
        for frame in frames(stream):
            before.show(frame)
            if frame.event == "meta":
                run_id = frame.data["runId"]
            if frame.event == "approval":
                call = frame.data
                break
    before.line()
    check(bool(call) and call["toolName"] == "refund_order", "the run is parked on the refund")
    check(refunds(order) == [], "nothing has been paid back")

    title("kill -9")
    shop.kill()

    title("New processes on the same database; carol decides")
    shop.start()
    decision = {"runId": call["runId"], "toolCallId": call["id"], "digest": call["digest"]}
    status, _ = shop.call("bob", "/agent/tool-call/approve", decision)
    check(status == 404, f"bob cannot see that there is anything to approve ({status})")
    status, _ = shop.call("alice", "/agent/tool-call/approve", decision)
    check(status == 403, f"alice may not approve her own refund ({status})")
    status, inbox = shop.call("carol", "/agent/approvals")
    waiting = [row for row in inbox.get("results", []) if row["toolCallId"] == call["id"]]
    check(status == 200 and len(waiting) == 1, "carol finds it among her approvals:")
    print(textwrap.indent(textwrap.fill(str(waiting[0]["preview"]), WIDTH - 8), " " * 8))
    status, standing = shop.call("carol", "/agent/tool-call/approve", decision)
    check(status == 200 and standing["status"] == "approved", f"carol approves over REST ({status})")

    title(f"The stream goes on after frame {before.numbers[-1]}")
    after = Printer()
    terminal = ""
    path = f"/agent/chat/{run_id}/stream?after={before.numbers[-1]}"
    with shop.open("alice", path, accept="text/event-stream") as stream:
        for frame in frames(stream):
            after.show(frame)
            if frame.event in ("done", "error"):
                terminal = frame.event
                break
    after.line()

    title("What is true now")
    numbers = before.numbers + after.numbers
    check(terminal == "done", "the stream ended with done")
    check(
        numbers == list(range(1, len(numbers) + 1)),
        f"frames 1 to {len(numbers)}, across both connections: no gap, no repeat",
    )
    paid = refunds(order)
    check(len(paid) == 1, "there is exactly one refund row")
    check(str(paid[0]["amount"]) == AMOUNT, f"it is {paid[0]['amount']} EUR")
    check(paid[0]["approved_by"] == "carol", "and carries carol's name as approver")
    status, run = shop.call("admin", f"/agent/runs/{run_id}")
    check(status == 200 and run["status"] == "completed", "the run is completed")
    check(run["durable"] is True, "it ran on database checkpoints")

    title("The journal of the run")
    rows = [(str(row["position"]), str(row["name"]), str(row["kind"])) for row in run["journal"]]
    check(bool(rows), f"{len(rows)} checkpoints:")
    table(rows, ("pos", "checkpoint", "kind"))


def main() -> int:
    """Run the tour on a temporary database, or on DATABASE_URL."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agora-tour-") as folder:
        os.environ["SHOP_STATE_DIR"] = folder
        os.environ["AGORA_DISPATCHER"] = "worker"
        # The tour's words are the offline model's; a real one would not say them twice.
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
            os.environ.pop(name, None)
        if not os.environ.get("DATABASE_URL"):
            os.environ["DATABASE_URL"] = f"sqlite:///{Path(folder) / 'tour.sqlite3'}"
        # A port of its own: PORT may be the demo's, which is somebody else's shop.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            shop = Shop(probe.getsockname()[1])
        try:
            tour(shop)
        except (Untrue, demo.Refused) as reason:
            print(f"\n  NOT SO: {reason}", file=sys.stderr)
            return 1
        except (OSError, KeyError, ValueError) as error:
            print(f"\n  NOT SO: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        finally:
            shop.stop()
    print(f"\nAll of it is true. {time.monotonic() - began:.0f} seconds.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
