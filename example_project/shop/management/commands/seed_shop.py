"""``manage.py seed_shop``: the demo's people and orders. Running it again changes nothing."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from shop.models import Order, Parcel

PASSWORD = "demo"
# name: (is_staff, is_superuser, permissions)
PEOPLE: dict[str, tuple[bool, bool, tuple[str, ...]]] = {
    "alice": (False, False, ()),
    "bob": (False, False, ()),
    "carol": (
        True,
        False,
        ("shop.approve_refund", "shop.view_order", "shop.view_refund"),
    ),
    "dave": (
        True,
        False,
        (
            "agora_agent.view_all_runs",
            "agora_agent.view_agentrun",
            "agora_agent.view_thread",
            "agora_agent.view_message",
            "agora_agent.view_toolcall",
            "agora_agent.view_decision",
            "agora_agent.view_auditentry",
            "agora_agent.view_accessentry",
            "agora_agent.view_usage",
            "shop.view_order",
            "shop.view_refund",
        ),
    ),
    "admin": (True, True, ()),
}
# number, customer, status, items [(name, quantity, price)], placed on
ORDERS = [
    (
        "1001",
        "alice",
        "delivered",
        [("Teapot, blue", 1, "42.50"), ("Green tea, 100 g", 2, "9.90")],
        (2026, 1, 12),
    ),
    ("1002", "alice", "shipped", [("Tea towel", 3, "8.00")], (2026, 2, 3)),
    ("1003", "alice", "open", [("Kettle", 1, "89.00")], (2026, 2, 20)),
    ("2001", "bob", "delivered", [("Espresso cups, set of 4", 1, "36.00")], (2026, 1, 25)),
    ("2002", "bob", "open", [("Coffee beans, 1 kg", 2, "24.00")], (2026, 2, 18)),
]
# number, order, status, address
PARCELS = [
    ("P-71", "1001", "delivered", "Alice Archer, 1 Mill Lane, Millbrook"),
    ("P-77", "1002", "in transit", "Alice Archer, 1 Mill Lane, Millbrook"),
    ("P-90", "2001", "delivered", "Bob Baker, 22 High Street, Oldtown"),
]


class Command(BaseCommand):
    """Creates what is missing and leaves alone what is there."""

    help = "Create the demo's users (password: demo), orders and parcels. Safe to run again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--migrate", action="store_true", help="bring the database up to date first")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["migrate"]:
            call_command("migrate", verbosity=options["verbosity"], interactive=False)
        with transaction.atomic():
            for name, (is_staff, is_superuser, permissions) in PEOPLE.items():
                self._person(name, is_staff, is_superuser, permissions)
            for number, customer, status, items, placed in ORDERS:
                self._order(number, customer, status, items, placed)
            for number, order, status, address in PARCELS:
                Parcel.objects.get_or_create(
                    number=number,
                    defaults={
                        "order": Order.objects.get(number=order),
                        "status": status,
                        "address": address,
                    },
                )
        if options["verbosity"] > 0:
            self.stdout.write(
                f"{len(PEOPLE)} people, {len(ORDERS)} orders, {len(PARCELS)} parcels are there."
            )

    def _person(self, name: str, is_staff: bool, is_superuser: bool, permissions: tuple[str, ...]) -> None:
        user, created = get_user_model().objects.get_or_create(
            username=name,
            defaults={
                "is_staff": is_staff,
                "is_superuser": is_superuser,
                "first_name": name.title(),
                "email": f"{name}@shop.example",
            },
        )
        if not created:
            return
        user.set_password(PASSWORD)
        user.save(update_fields=["password"])
        for permission in permissions:
            app, codename = permission.split(".")
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))

    def _order(
        self,
        number: str,
        customer: str,
        status: str,
        items: list[tuple[str, int, str]],
        placed: tuple[int, int, int],
    ) -> None:
        Order.objects.get_or_create(
            number=number,
            defaults={
                "customer": get_user_model().objects.get(username=customer),
                "status": status,
                "total": sum((quantity * Decimal(price) for _, quantity, price in items), Decimal()),
                "items": [{"name": n, "quantity": q, "price": p} for n, q, p in items],
                "placed_on": datetime.date(*placed),
            },
        )
