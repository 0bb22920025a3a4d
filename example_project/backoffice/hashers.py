"""A password hasher for people whose password is printed on the sign-in page."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class DemoHasher(PBKDF2PasswordHasher):
    """Django's own with few iterations: HTTP Basic hashes at every request, and there is no secret to guard."""

    algorithm = "pbkdf2_demo"
    iterations = 1_000
