from django.apps import AppConfig


class ClerkConfig(AppConfig):
    """The agents that the tests run."""

    name = "tests.clerk"
    label = "clerk"
    default_auto_field = "django.db.models.BigAutoField"
