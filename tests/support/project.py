"""A small Django project in a directory of its own, for tests of what settings do to commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_SETTINGS = """
SECRET_KEY = "only-for-tests-" + "x" * 40
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "urls"
ASGI_APPLICATION = "project.asgi.application"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE / "default.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"},
    }
}
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "agora_agent",
    "agora_agent.durable",
]
AGORA_AGENT = {}
"""


class Project:
    """``settings``: lines that change the settings above; ``files``: further modules by path."""

    def __init__(self, directory: Path, settings: str = "", files: dict[str, str] | None = None) -> None:
        self.directory = directory
        head = f"from pathlib import Path\n\nBASE = Path({str(directory)!r})\n"
        everything = {
            "project_settings.py": head + _SETTINGS + settings,
            "urls.py": "urlpatterns = []\n",
            **(files or {}),
        }
        for name, text in everything.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def manage(self, *arguments: str, expect: int | None = 0) -> str:
        """Run a management command; what it printed. ``expect`` is its exit code, None for any."""
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project_settings",
            "PYTHONPATH": f"{self.directory}{os.pathsep}{ROOT}",
            "PYTHONWARNINGS": "error::DeprecationWarning:agora_agent",
        }
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        output = done.stdout + done.stderr
        if expect is not None and done.returncode != expect:
            raise AssertionError(f"{' '.join(arguments)} ended with {done.returncode}:\n{output}")
        return output
