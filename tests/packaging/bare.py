"""The core alone: no openai, channels, django-q2 or any other extra. Exit 0 if it checks, migrates and runs a turn.

A script, not a test: nox runs it where the extras are not installed, ``test_no_extras`` where they are hidden.
"""

from __future__ import annotations

import importlib.abc
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

EXTRAS = {
    "channels",
    "channels_redis",
    "daphne",
    "dj_database_url",
    "django_q",
    "openai",
    "psycopg",
    "redis",
    "whitenoise",
}


class Hidden(importlib.abc.MetaPathFinder):
    """Refuses every extra, as an interpreter without them would."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def main(folder: str) -> None:
    sys.meta_path.insert(0, Hidden())

    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="bare" * 10,
        USE_TZ=True,
        ROOT_URLCONF="bare_urls",
        # A file: the threads that drive the run must see the same database.
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{folder}/bare.sqlite3",
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
            }
        },
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "rest_framework",
            "agora_agent",
            "agora_agent.durable",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        AGORA_AGENT={
            "DURABLE": True,
            "DISPATCHER": "immediate",
            "MODEL_PROVIDER": "agora_agent.providers.scripted.ScriptedModel",
        },
    )
    django.setup()

    from django.contrib import admin
    from django.core.management import call_command
    from django.urls import include, path

    urls = ModuleType("bare_urls")
    urls.__dict__["urlpatterns"] = [
        path("admin/", admin.site.urls),
        path("agent/", include("agora_agent.api.urls")),
    ]
    sys.modules["bare_urls"] = urls

    call_command("check")
    call_command("migrate", verbosity=0)
    turn()
    loaded = EXTRAS & {name.partition(".")[0] for name in sys.modules}
    assert not loaded, f"the core imported {loaded}"


def turn() -> None:
    """One message through the durable runner, driven on the spot."""
    from django.contrib.auth import get_user_model
    from django.db import transaction

    from agora_agent import Agent, register
    from agora_agent.models import AgentRun
    from agora_agent.turn import runner

    register(Agent(name="helper", instructions="Help.", public=True))
    user = get_user_model().objects.create_user("ann")
    with transaction.atomic():
        run_id = runner.get().start(runner.AgentRunInput(agent="helper", message="hello", user=user))
    run = AgentRun.objects.get(pk=run_id)
    assert (run.status, run.durable) == ("completed", True), (run.status, run.error_code, run.error_detail)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
