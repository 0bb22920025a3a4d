"""The admin: runs, threads, the approvals inbox, and the records. Registered unless ``REGISTER_ADMIN`` is off.

A project that wants its own leaves the setting off and registers subclasses of the mixins.
"""

from __future__ import annotations

from django.contrib import admin

from agora_agent.admin.approvals import PendingApprovalAdmin, PendingApprovalAdminMixin
from agora_agent.admin.records import (
    AccessEntryAdmin,
    AccessEntryAdminMixin,
    AuditEntryAdmin,
    AuditEntryAdminMixin,
    UsageAdmin,
    UsageAdminMixin,
)
from agora_agent.admin.runs import RunAdmin, RunAdminMixin
from agora_agent.admin.threads import ThreadAdmin, ThreadAdminMixin
from agora_agent.conf import agora_settings
from agora_agent.models import AccessEntry, AgentRun, AuditEntry, PendingApproval, Thread, Usage

__all__ = [
    "AccessEntryAdminMixin",
    "AuditEntryAdminMixin",
    "PendingApprovalAdminMixin",
    "RunAdminMixin",
    "ThreadAdminMixin",
    "UsageAdminMixin",
    "register",
]


def register(site: admin.AdminSite = admin.site) -> None:
    """Register all pages on ``site``."""
    site.register(AgentRun, RunAdmin)
    site.register(Thread, ThreadAdmin)
    site.register(PendingApproval, PendingApprovalAdmin)
    site.register(AuditEntry, AuditEntryAdmin)
    site.register(AccessEntry, AccessEntryAdmin)
    site.register(Usage, UsageAdmin)


if agora_settings.REGISTER_ADMIN:
    register()
