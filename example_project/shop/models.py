"""What the shop sells, ships and pays back."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.db.models import Sum

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser


class OrderQuerySet(models.QuerySet["Order"]):
    """Orders by who may see them."""

    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> OrderQuerySet:
        """Staff see every order, customers their own, others none."""
        if not (user.is_authenticated and user.is_active):
            return self.none()
        return self if getattr(user, "is_staff", False) else self.filter(customer_id=user.pk)


class Order(models.Model):
    """An order; people know it by its ``number``."""

    class Status(models.TextChoices):
        OPEN = "open"
        SHIPPED = "shipped"
        DELIVERED = "delivered"
        CANCELLED = "cancelled"

    number = models.CharField(max_length=20, unique=True)
    customer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="orders")
    status = models.CharField(max_length=16, choices=Status, default=Status.OPEN)
    total = models.DecimalField(max_digits=10, decimal_places=2, help_text="EUR")
    #: ``[{name, quantity, price}]``
    items = models.JSONField(default=list)
    placed_on = models.DateField()

    objects = OrderQuerySet.as_manager()

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return self.number

    @property
    def refunded(self) -> Decimal:
        """What was paid back so far."""
        return self.refunds.aggregate(total=Sum("amount"))["total"] or Decimal("0.00")

    @property
    def refundable(self) -> Decimal:
        """What can still be paid back."""
        return self.total - self.refunded


class Refund(models.Model):
    """Money that was paid back: the effect that must never happen twice."""

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="refunds")
    amount = models.DecimalField(max_digits=10, decimal_places=2, help_text="EUR")
    reason = models.TextField()
    # Not unique on purpose: that one approval gives one refund is the runner's doing, and the demo shows it.
    idempotency_key = models.CharField(max_length=190, db_index=True)
    approved_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        permissions = [("approve_refund", "Can approve refunds")]

    def __str__(self) -> str:
        return f"{self.amount} EUR of order {self.order}"


class Parcel(models.Model):
    """A parcel on its way."""

    class Status(models.TextChoices):
        PACKED = "packed"
        IN_TRANSIT = "in transit"
        DELIVERED = "delivered"

    number = models.CharField(max_length=20, unique=True)
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="parcels")
    status = models.CharField(max_length=16, choices=Status, default=Status.PACKED)
    address = models.CharField(max_length=200)

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return self.number


class Note(models.Model):
    """A note that was sent to the shop about an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="notes")
    text = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.text[:60]
