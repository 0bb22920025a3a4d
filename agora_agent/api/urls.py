"""The routes. Include them under any prefix: ``path("agent/", include("agora_agent.api.urls"))``."""

from __future__ import annotations

from typing import Any

from django.urls import re_path

from agora_agent.api.base import AgoraView
from agora_agent.api.views.chat import ChatCancelView, ChatStreamView, ChatView
from agora_agent.api.views.decisions import ApproveView, RejectView, SettleView
from agora_agent.api.views.health import HealthView
from agora_agent.api.views.runs import ApprovalsView, RunsView, RunView
from agora_agent.api.views.threads import ThreadsView, ThreadView

app_name = "agora_agent"


def _route(pattern: str, view: type[AgoraView], name: str) -> Any:
    """``<word>`` in the pattern is a path segment; a slash at the end is optional."""
    segments = pattern.replace("<", "(?P<").replace(">", ">[^/]+)")
    return re_path(rf"^{segments}/?\Z", view.as_view(), name=name)


urlpatterns = [
    _route("chat", ChatView, "chat"),
    _route("chat/<run_id>/stream", ChatStreamView, "chat-stream"),
    _route("chat/<run_id>/cancel", ChatCancelView, "chat-cancel"),
    _route("tool-call/approve", ApproveView, "tool-call-approve"),
    _route("tool-call/reject", RejectView, "tool-call-reject"),
    _route("tool-call/settle", SettleView, "tool-call-settle"),
    _route("threads", ThreadsView, "threads"),
    _route("threads/<thread_id>", ThreadView, "thread"),
    _route("runs", RunsView, "runs"),
    _route("runs/<run_id>", RunView, "run"),
    _route("approvals", ApprovalsView, "approvals"),
    _route("health", HealthView, "health"),
]
