"""The shop app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Its ``agents`` module is found by agora_agent."""

    name = "shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
