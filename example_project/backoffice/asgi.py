"""The server's entry point. With the ``thread`` dispatcher this process also drives the runs."""

from __future__ import annotations

import os

from django.conf import settings
from django.core.asgi import get_asgi_application

import agora_agent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backoffice.settings")

application = get_asgi_application()

if settings.DISPATCHER == "thread" or not settings.AGORA_AGENT["DURABLE"]:
    # Recovery of what an earlier process left begins now, not with the first request.
    agora_agent.serve()
