"""The shop's rows in the admin, to look at."""

from __future__ import annotations

from django.contrib import admin

from shop.models import Note, Order, Parcel, Refund


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders."""

    list_display = ("number", "customer", "status", "total", "placed_on")
    list_filter = ("status",)
    search_fields = ("number",)
    list_select_related = ("customer",)


@admin.register(Refund)
class RefundAdmin(admin.ModelAdmin):
    """Refunds."""

    list_display = ("order", "amount", "reason", "approved_by", "created_at")
    list_select_related = ("order",)


@admin.register(Parcel)
class ParcelAdmin(admin.ModelAdmin):
    """Parcels."""

    list_display = ("number", "order", "status", "address")
    list_select_related = ("order",)


@admin.register(Note)
class NoteAdmin(admin.ModelAdmin):
    """Notes."""

    list_display = ("order", "text", "created_at")
    list_select_related = ("order",)
