from django.apps import AppConfig


class ClerkConfig(AppConfig):
    """The agents that the tests run."""

    name = "tests.clerk"
    label = "clerk"
