"""Settings of a second process that works on the running test's own database."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["AGORA_TEST_DATABASE"]
