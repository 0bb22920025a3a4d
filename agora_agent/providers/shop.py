"""The script of the offline demo: a small shop's back office, understood from the person's own words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from agora_agent.providers.base import ModelRequest
from agora_agent.providers.scripted import Reply

_PARCEL = re.compile(r"\b(P-?\d+)\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\bP-?\d+\s+to\s+(.+?)\s*[.!?]*$", re.IGNORECASE | re.DOTALL)
_ORDER = re.compile(r"(?:\border|\bnumber|#)\s*#?(\d+)\b", re.IGNORECASE)
_LONG = re.compile(r"(?<![\d.,-])(\d{4,})(?![.,]\d|\d)")
_AMOUNT = re.compile(r"(?<![\w.,#-])[€$£]?\s?(\d+(?:[.,]\d{1,2})?)(?![\d]|[.,]\d)")
_REASON = re.compile(r"\b(?:because|since|reason:?)\s+(?:of\s+)?(.+?)\s*[.!?]*$", re.IGNORECASE | re.DOTALL)
_NOTE = re.compile(r"\bnote\b[^:]*:\s*(.+)$", re.IGNORECASE | re.DOTALL)
_LIST = re.compile(r"\b(?:list|show|which|what|see)\b.*\borders\b", re.IGNORECASE | re.DOTALL)
_STATUS = re.compile(
    r"\b(open|new|paid|packed|shipped|delivered|returned|refunded|cancelled)\b", re.IGNORECASE
)

# How the turn tells a model why a person said no.
_GIVEN = re.compile(r"Reason given: (.+?)\s*(?:Nothing was executed|$)", re.DOTALL)

GREETING = (
    "I am the offline demo model: no network, a few rules, always the same answers. Ask me to list open orders, "
    "to compare 1001 and 1002, to refund 1001, to refund 12.50 for order 1001 because it arrived broken, to put "
    "a note on 1001: call the customer, where parcel P-77 is, or to reroute parcel P-77 to 5 High Street."
)


@dataclass(frozen=True)
class _Done:
    """A call of this turn, and what came of it."""

    name: str
    input: dict[str, Any]
    status: str
    content: str

    @property
    def value(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError:
            return self.content

    @property
    def words(self) -> str:
        value = self.value
        if isinstance(value, dict):
            value = next(
                (value[key] for key in ("reason", "error", "message") if value.get(key)), self.content
            )
        return str(value).strip().rstrip(".")


class _Turn:
    """The last thing that the person said, and what was done about it since."""

    def __init__(self, request: ModelRequest) -> None:
        messages = request.messages
        last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
        self.said = str(messages[last].get("content") or "") if last >= 0 else ""
        self.offered = {spec.name: spec for spec in request.tools}
        asked: dict[str, dict[str, Any]] = {}
        self.done: list[_Done] = []
        for message in messages[last + 1 :]:
            for call in message.get("tool_calls") or ():
                asked[call["id"]] = call
            if message["role"] == "tool":
                call = asked.get(message["id"], {})
                self.done.append(
                    _Done(
                        message.get("name") or call.get("name", ""),
                        call.get("input") or {},
                        message.get("status", "executed"),
                        str(message.get("content") or ""),
                    )
                )

    def call(self, *calls: tuple[str, dict[str, Any]], say: str = "") -> Reply:
        """The calls, with the arguments that the offered tools take, and what is said before them."""
        fitting = []
        for name, arguments in calls:
            known = self.offered[name].schema.get("properties", {})
            fitting.append((name, {key: value for key, value in arguments.items() if key in known}))
        return Reply(say, calls=fitting)

    def results(self, name: str) -> list[_Done]:
        return [done for done in self.done if done.name == name]


def shop_script(request: ModelRequest) -> Reply:
    """What the demo's model says next."""
    turn = _Turn(request)
    for rule in _RULES:
        reply = rule(turn)
        if reply is not None:
            return reply
    return Reply(GREETING)


def _parcel(turn: _Turn) -> Reply | None:
    parcel = _PARCEL.search(turn.said)
    if parcel is None:
        return None
    number = parcel[1].upper()
    address = _ADDRESS.search(turn.said)
    moving = bool(re.search(r"\b(?:reroute|redirect|send|deliver)\b", turn.said, re.IGNORECASE) and address)
    if "logistics" in turn.offered:
        if results := turn.results("logistics"):
            return Reply(
                _closing(results[-1], f"Logistics says: {_told(results[-1])}", "the question to logistics")
            )
        return turn.call(("logistics", {"task": turn.said.strip()}))
    if moving and address is not None and "reroute_parcel" in turn.offered:
        if results := turn.results("reroute_parcel"):
            done = f"Parcel {number} now goes to {results[-1].input.get('address', address[1])}."
            return Reply(_closing(results[-1], done, f"the new address of parcel {number}"))
        return turn.call(("reroute_parcel", {"number": number, "address": address[1]}))
    if "track_parcel" in turn.offered and not moving:
        if results := turn.results("track_parcel"):
            where = _told(results[-1])
            return Reply(_closing(results[-1], f"Parcel {number}: {where}", f"tracking parcel {number}"))
        return turn.call(("track_parcel", {"number": number}))
    return Reply(f"I cannot do anything about parcel {number}: I have no tool for it here.")


def _list_orders(turn: _Turn) -> Reply | None:
    if not _LIST.search(turn.said) or "list_orders" not in turn.offered:
        return None
    if results := turn.results("list_orders"):
        return Reply(_closing(results[-1], _listing(results[-1].value), "the list of orders"))
    status = _STATUS.search(turn.said)
    return turn.call(("list_orders", {"status": status[1].lower() if status else "open"}))


def _note(turn: _Turn) -> Reply | None:
    note, numbers = _NOTE.search(turn.said), _orders(turn.said.partition(":")[0])
    if note is None or not numbers or "send_note" not in turn.offered:
        return None
    if results := turn.results("send_note"):
        done = f"The note on order {numbers[0]} is sent."
        return Reply(_closing(results[-1], done, f"the note on order {numbers[0]}"))
    return turn.call(("send_note", {"number": numbers[0], "text": note[1].strip()}))


def _refund(turn: _Turn) -> Reply | None:
    if not re.search(r"\brefund\b", turn.said, re.IGNORECASE) or "refund_order" not in turn.offered:
        return None
    reason = _REASON.search(turn.said)
    number, amount = _refund_wish(turn.said[: reason.start()] if reason else turn.said)
    if not number:
        return Reply('Which order? Say for example "refund 1001" or "refund 12.50 for order 1001".')
    if results := turn.results("refund_order"):
        told = results[-1].value
        # A person may have approved another amount than the one that was asked for.
        paid = (told.get("amount") if isinstance(told, dict) else None) or results[-1].input.get(
            "amount", amount
        )
        done = f"Done: {paid} was refunded for order {number}."
        return Reply(_closing(results[-1], done, f"the refund of {paid} for order {number}"))
    if "find_order" in turn.offered:
        if not (found := turn.results("find_order")):
            return turn.call(("find_order", {"number": number}), say=f"Let me look up order {number}. ")
        order = found[-1].value
        if found[-1].status != "executed" or not isinstance(order, dict):
            return Reply(_closing(found[-1], f"I cannot read order {number}.", f"looking up order {number}"))
        left = str(order.get("refundable", order.get("total", "")))
        if _is_zero(left):
            return Reply(f"Nothing is left to refund on order {number}.")
        amount = amount or left
    if not amount:
        return Reply(f"How much of order {number} shall I refund?")
    why = reason[1] if reason else _aside(turn.said) or "asked for in the chat"
    return turn.call(
        ("refund_order", {"number": number, "amount": amount, "reason": why}),
        say=f"I can refund {amount} EUR of order {number}. Somebody in the back office has to approve it. ",
    )


def _orders_asked(turn: _Turn) -> Reply | None:
    numbers = _orders(turn.said)
    if not numbers or "find_order" not in turn.offered:
        return None
    if results := turn.results("find_order"):
        return Reply(" ".join(_about(result) for result in results))
    return turn.call(*(("find_order", {"number": number}) for number in numbers))


def _orders(text: str) -> list[str]:
    """The numbers of orders in ``text``, each once, in order."""
    found = sorted((match.start(1), match[1]) for rule in (_ORDER, _LONG) for match in rule.finditer(text))
    return list(dict.fromkeys(number for _, number in found))


def _refund_wish(text: str) -> tuple[str, str]:
    """The order and the amount, "" where there is none: an order is named as such, or it is the longer number."""
    named = _ORDER.search(text)
    numbers = [match[1].replace(",", ".") for match in _AMOUNT.finditer(text)]
    order = named[1] if named else next((n for n in numbers if re.fullmatch(r"\d{4,}", n)), "")
    if not order and len(numbers) == 1 and "." not in numbers[0]:
        order = numbers[0]
    rest = list(numbers)
    if order in rest:
        rest.remove(order)
    return order, rest[0] if rest else ""


def _aside(text: str) -> str:
    """What was said after the wish: "refund 1001, it arrived broken"."""
    aside = re.search(r"[,:;]\s*((?:it|they|the|my)\b.+?)\s*[.!?]*$", text, re.IGNORECASE | re.DOTALL)
    return aside[1] if aside else ""


def _is_zero(amount: str) -> bool:
    try:
        return Decimal(amount) <= 0
    except InvalidOperation:
        return False


def _closing(result: _Done, done: str, what: str) -> str:
    """What came of ``what``, in one honest sentence: ``done`` only if it was executed."""
    match result.status:
        case "executed":
            return done
        case "rejected":
            given = _GIVEN.search(result.content)
            why = f": {given[1].strip().rstrip('.')}" if given else ""
            return f"A person declined {what}{why}. Nothing was done, and I will not try again."
        case "expired":
            return f"Nobody decided about {what} in time. Nothing was done."
        case "cancelled":
            return f"{what[0].upper()}{what[1:]} was cancelled. Nothing was done."
        case "interrupted":
            return f"Nobody knows whether {what} happened: {result.words}. A person has to look."
    return f"That did not work: {what} failed ({result.words})."


def _told(result: _Done) -> str:
    value = result.value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]  # another agent's answer
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items() if item not in (None, "", [])) + "."
    return str(value).strip()


def _listing(value: Any) -> str:
    if isinstance(value, dict):
        value = next((item for item in value.values() if isinstance(item, list)), value)
    if not isinstance(value, list):
        return str(value)
    if not value:
        return "There are no such orders."
    lines = [
        f"{row.get('number')} ({row.get('customer')}, {row.get('total')})"
        if isinstance(row, dict)
        else str(row)
        for row in value
    ]
    return f"{len(lines)} orders: {'; '.join(lines)}." if len(lines) > 1 else f"One order: {lines[0]}."


def _about(result: _Done) -> str:
    number, order = result.input.get("number", ""), result.value
    if result.status != "executed" or not isinstance(order, dict):
        return _closing(result, f"Order {number}: {result.content}", f"looking up order {number}")
    known = {key: order.get(key) or "unknown" for key in ("customer", "status", "total", "refundable")}
    return "Order {number} of {customer} is {status}: total {total}, {refundable} of it refundable.".format(
        number=order.get("number", number), **known
    )


_RULES: tuple[Callable[[_Turn], Reply | None], ...] = (_parcel, _note, _refund, _list_orders, _orders_asked)
