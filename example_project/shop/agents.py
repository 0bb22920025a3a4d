"""The shop's agents: ``support``, which customers talk to, and ``logistics``, which it hands parcels to."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any

from django.db import transaction

from agora_agent import Agent, ToolContext, ToolError, register, tool
from agora_agent.models import ToolCall
from shop.models import Note, Order, Parcel, Refund


def _order(ctx: ToolContext, number: str) -> Order:
    order = (
        Order.objects.visible_to(ctx.user).filter(number=number.strip()).select_related("customer").first()
    )
    if order is None:
        raise ToolError(f"There is no order {number} that {ctx.user.get_username()} may see.")
    return order


def _parcel(ctx: ToolContext, number: str) -> Parcel:
    mine = Order.objects.visible_to(ctx.user)
    parcel = Parcel.objects.filter(number=number.strip(), order__in=mine).select_related("order").first()
    if parcel is None:
        raise ToolError(f"There is no parcel {number} that {ctx.user.get_username()} may see.")
    return parcel


def _summary(order: Order) -> dict[str, Any]:
    return {
        "number": order.number,
        "customer": order.customer.get_username(),
        "status": order.status,
        "total": order.total,
        "refundable": order.refundable,
        "placed_on": order.placed_on,
    }


def _delay(ctx: ToolContext, name: str) -> bool:
    """Sleep as long as the environment says; True if the run was stopped meanwhile."""
    seconds = float(os.environ.get(name) or 0)
    return seconds > 0 and ctx.abort_signal.wait(seconds)


@tool(kind="read")
def find_order(ctx: ToolContext, number: str) -> dict[str, Any]:
    """Look up one order: status, items, parcels, total, and what of it can still be refunded.

    Args:
        number: the order's number, for example "1001".
    """
    order = _order(ctx, number)
    parcels = list(order.parcels.values_list("number", flat=True))
    return {**_summary(order), "items": order.items, "parcels": parcels}


@tool(kind="read")
def list_orders(ctx: ToolContext, status: str = "") -> list[dict[str, Any]]:
    """List the customer's orders.

    Args:
        status: open, shipped, delivered or cancelled; empty for all of them.
    """
    orders = Order.objects.visible_to(ctx.user).select_related("customer")
    wanted = status.strip().lower()
    if wanted not in ("", "all", "any"):
        if wanted not in Order.Status.values:
            raise ToolError(f"No such status: {status}. Use one of {', '.join(Order.Status.values)}.")
        orders = orders.filter(status=wanted)
    return [_summary(order) for order in orders[:50]]


def _refund_preview(ctx: ToolContext, number: str, amount: Decimal, reason: str) -> str:
    order = (
        Order.objects.visible_to(ctx.user).filter(number=number.strip()).select_related("customer").first()
    )
    to = order.customer.get_username() if order else "nobody: this order is not the customer's"
    return f"Refund {amount:.2f} EUR of order {number} to {to} because {reason}"


@tool(kind="action", approver="shop.approve_refund", preview=_refund_preview)
def refund_order(ctx: ToolContext, number: str, amount: Decimal, reason: str) -> dict[str, Any]:
    """Pay back money for an order. Somebody in the back office must approve it first.

    Args:
        number: the order's number.
        amount: how much, in EUR, for example "12.50".
        reason: why, in the customer's words.
    """
    if amount <= 0 or amount != amount.quantize(Decimal("0.01")):
        raise ToolError("The amount must be greater than 0, in EUR and whole cents.")
    order = _order(ctx, number)
    if _delay(ctx, "SHOP_DELAY_BEFORE_EFFECT"):
        raise ToolError("Stopped before anything was paid back.")
    approved_by = ToolCall.objects.filter(run_id=ctx.run_id, call_id=ctx.tool_call_id).values_list(
        "decided_by__username", flat=True
    )
    with transaction.atomic():
        # Locked, so that two refunds of one order cannot both fit into what is left of it.
        order = Order.objects.select_for_update().get(pk=order.pk)
        if amount > order.refundable:
            raise ToolError(f"Only {order.refundable:.2f} EUR of order {number} can still be refunded.")
        refund = Refund.objects.create(
            order=order,
            amount=amount,
            reason=reason,
            idempotency_key=ctx.idempotency_key,
            approved_by=approved_by.first() or "",
        )
    _delay(ctx, "SHOP_DELAY_AFTER_EFFECT")
    return {"refund": refund.pk, "order": order.number, "amount": refund.amount, "currency": "EUR"}


@tool(kind="action", preview=lambda ctx, number, text: f"Send the shop a note about order {number}: {text}")
def send_note(ctx: ToolContext, number: str, text: str) -> dict[str, Any]:
    """Send the shop a note about an order. The customer confirms it first.

    Args:
        number: the order's number.
        text: what the note says.
    """
    order = _order(ctx, number)
    note = Note.objects.create(order=order, text=text)
    return {"note": note.pk, "order": order.number}


@tool(kind="read")
def track_parcel(ctx: ToolContext, number: str) -> dict[str, Any]:
    """Say where a parcel is.

    Args:
        number: the parcel's number, for example "P-77".
    """
    parcel = _parcel(ctx, number)
    return {
        "number": parcel.number,
        "order": parcel.order.number,
        "status": parcel.status,
        "address": parcel.address,
    }


@tool(kind="action", preview=lambda ctx, number, address: f"Send parcel {number} to {address} instead")
def reroute_parcel(ctx: ToolContext, number: str, address: str) -> dict[str, Any]:
    """Send a parcel that is still under way to another address. The customer confirms it first.

    Args:
        number: the parcel's number.
        address: the new address.
    """
    parcel = _parcel(ctx, number)
    moved = Parcel.objects.filter(pk=parcel.pk).exclude(status=Parcel.Status.DELIVERED)
    if not moved.update(address=address):
        raise ToolError(f"Parcel {number} has been delivered already.")
    return {"number": parcel.number, "address": address}


logistics = Agent(
    name="logistics",
    display_name="Logistics",
    description="Tracks parcels and sends them to another address.",
    instructions="You look after parcels. Track them, and reroute them when you are asked to.",
    tools=[track_parcel, reroute_parcel],
    public=True,
)

support = Agent(
    name="support",
    display_name="Support",
    description="Answers customers about their orders, and asks for refunds.",
    instructions=(
        "You work in the support of a small shop. Look an order up before you speak about it. "
        "Refunds are approved by the back office: ask for one when the customer has a reason, and say "
        "plainly how it ended. Hand questions about parcels to logistics."
    ),
    tools=[find_order, list_orders, refund_order, send_note],
    delegates=["logistics"],
    ask=True,
    public=True,
)

register(support, logistics)
