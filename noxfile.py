"""The supported versions: ``nox`` for all of them, ``nox -s no_extras`` for the core alone."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True


@nox.session
@nox.parametrize(
    "python,django",
    [("3.11", "5.2"), ("3.12", "6.0"), ("3.13", "6.1")],
    ids=["py311-dj52", "py312-dj60", "py313-dj61"],
)
def suite(session: nox.Session, django: str) -> None:
    """The whole suite on one pair of Python and Django."""
    major, minor = django.split(".")
    session.install("-e", ".[dev]", f"django>={django},<{major}.{int(minor) + 1}")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=["3.11", "3.13"])
def no_extras(session: nox.Session) -> None:
    """The core without openai, channels and django-q2: it imports, checks, migrates and runs a turn."""
    session.install(".")
    session.run("python", "tests/packaging/bare.py")
