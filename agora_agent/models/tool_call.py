"""A tool call: what the model asked for, what was decided about it, what came of it."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow, KeyField
from agora_agent.ids import new_id
from agora_agent.models.fields import CodecField, PrimaryManager
from agora_agent.models.run import AgentRun


class ToolCallQuerySet(models.QuerySet["ToolCall"]):
    """Calls by what they wait for."""

    def pending(self) -> ToolCallQuerySet:
        """Waiting for a person, in a run that has not ended."""
        return self.filter(status__in=ToolCall.PENDING, run__status=AgentRun.Status.RUNNING)

    def unsettled(self) -> ToolCallQuerySet:
        """Without an outcome."""
        return self.filter(status__in=ToolCall.UNSETTLED)


class ToolCall(models.Model):
    """One call. Every change of ``status`` is a conditional update whose row count is checked."""

    class Kind(models.TextChoices):
        READ = "read", _("read")
        ACTION = "action", _("action")
        ASK = "ask", _("question")
        AGENT = "agent", _("delegation")

    class Status(models.TextChoices):
        PENDING_APPROVAL = "pending_approval", _("waiting for approval")
        PENDING_ANSWERS = "pending_answers", _("waiting for answers")
        AUTO_EXECUTED = "auto_executed", _("running unasked")
        APPROVED = "approved", _("approved")
        EXECUTING = "executing", _("executing")
        EXECUTED = "executed", _("executed")
        FAILED = "failed", _("failed")
        REJECTED = "rejected", _("rejected")
        EXPIRED = "expired", _("expired")
        CANCELLED = "cancelled", _("cancelled")
        INTERRUPTED = "interrupted", _("outcome unknown")

    PENDING = (Status.PENDING_APPROVAL, Status.PENDING_ANSWERS)
    UNSETTLED = (*PENDING, Status.AUTO_EXECUTED, Status.APPROVED, Status.EXECUTING, Status.INTERRUPTED)

    class Tier(models.TextChoices):
        NONE = "", _("nobody is asked")
        CONFIRM = "confirm", _("the requester confirms")
        AUTHORISE = "authorise", _("somebody else authorises")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(AgentRun, on_delete=models.CASCADE, related_name="tool_calls")
    #: The provider's id, or the one minted in its place: unique in its run only.
    call_id = KeyField(max_length=64)
    step = models.PositiveIntegerField(default=0)
    #: Its place among the calls of the step.
    index = models.PositiveIntegerField(default=0)
    tool_name = KeyField(max_length=64)
    kind = models.CharField(max_length=16, choices=Kind)
    status = models.CharField(max_length=20, choices=Status)
    #: Asking again about the same call is a new round with a new decision.
    round = models.PositiveSmallIntegerField(default=1)
    #: The validated, defaulted arguments: what people are shown and what runs.
    input = CodecField(default=dict, blank=True)
    #: ``name:version:schema digest`` of the tool, and the digest of identity and arguments.
    identity = KeyField(max_length=190, default="", blank=True)
    digest = KeyField(max_length=64, default="", blank=True)
    #: Where the tool was defined, for people; never compared.
    module = models.CharField(max_length=190, default="", blank=True)
    tier = models.CharField(max_length=16, choices=Tier, default=Tier.NONE, blank=True)
    #: Who may decide: ``""`` the requester, ``permission:app.codename`` or ``group:name``.
    approver = KeyField(max_length=190, default="", blank=True)
    preview = models.TextField(default="", blank=True)
    #: The at-most-once rule of this call: false means that it may run again after a crash.
    at_most_once = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    decided_ref = KeyField(max_length=190, default="", blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    via = models.CharField(max_length=16, default="", blank=True)
    reason = models.TextField(default="", blank=True)
    output = CodecField(null=True, blank=True)
    error = models.TextField(default="", blank=True)
    #: Whether its result frame is in the stream: every announced call gets exactly one.
    told = models.BooleanField(default=False)
    #: The delegated run, for a call of kind ``agent``.
    child_run_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())
    launched_at = models.DateTimeField(null=True, blank=True)
    executed_at = models.DateTimeField(null=True, blank=True)

    objects = PrimaryManager.from_queryset(ToolCallQuerySet)()

    class Meta:
        verbose_name = _("tool call")
        verbose_name_plural = _("tool calls")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["status", "approver", "created_at"], name="agora_call_inbox"),
            models.Index(fields=["call_id"], name="agora_call_provider_id"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "call_id"], name="agora_call_id"),
            models.CheckConstraint(
                condition=models.Q(
                    status__in=[
                        "pending_approval",
                        "pending_answers",
                        "auto_executed",
                        "approved",
                        "executing",
                        "executed",
                        "failed",
                        "rejected",
                        "expired",
                        "cancelled",
                        "interrupted",
                    ]
                ),
                name="agora_call_status_known",
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=["read", "action", "ask", "agent"]), name="agora_call_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}:{self.call_id}"

    @property
    def signal_key(self) -> str:
        """The key that this call's wait listens to: ``tool:<runId>:<callId>``, later rounds with their number."""
        suffix = "" if self.round == 1 else f":{self.round}"
        return f"tool:{self.run_id}:{self.call_id}{suffix}"


class PendingApproval(ToolCall):
    """The same row as the admin's inbox shows it: a call that waits, or waited, for a person's word."""

    class Meta:
        proxy = True
        verbose_name = _("pending approval")
        verbose_name_plural = _("pending approvals")
        default_permissions = ("view",)
