"""A governed run: one row for each turn and for each delegated turn."""

from __future__ import annotations

import datetime as dt

from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow, KeyField
from agora_agent.ids import new_id
from agora_agent.models.fields import ActorMixin, CodecField, PrimaryManager
from agora_agent.models.thread import Thread


class RunQuerySet(models.QuerySet["AgentRun"]):
    """Runs by where they are in their life."""

    def live(self) -> RunQuerySet:
        """Not ended."""
        return self.filter(status=AgentRun.Status.RUNNING)

    def top_level(self) -> RunQuerySet:
        """Started by a person, not delegated."""
        return self.filter(parent=None)


class AgentRun(ActorMixin):
    """A run. ``id`` is also the engine's run id, and for a top-level run the id of its stream."""

    class Status(models.TextChoices):
        RUNNING = "running", _("running")
        COMPLETED = "completed", _("completed")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    class Phase(models.TextChoices):
        QUEUED = "queued", _("queued")
        EXECUTING = "executing", _("executing")
        WAITING = "waiting", _("waiting")
        ENDED = "ended", _("ended")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="runs")
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.CASCADE, related_name="children"
    )
    #: The top-level run of this run's tree: its stream carries the frames of all of them.
    root_id = models.UUIDField(db_index=True)
    depth = models.PositiveSmallIntegerField(default=0)
    agent = models.CharField(max_length=64)
    persona = models.CharField(max_length=64, default="", blank=True)
    #: What the run was started with, as the loop reads it: message, page context, limits, features, day.
    input = CodecField(default=dict, blank=True)
    #: References of everybody who counts as a requester: never an approver in the *authorise* tier.
    requesters = CodecField(default=list, blank=True)
    status = models.CharField(max_length=16, choices=Status, default=Status.RUNNING)
    phase = models.CharField(max_length=16, choices=Phase, default=Phase.QUEUED)
    durable = models.BooleanField(default=False)
    steps = models.PositiveIntegerField(default=0)
    model = models.CharField(max_length=190, default="", blank=True)
    finish_reason = models.CharField(max_length=32, default="", blank=True)
    #: The text of the last step, as a parent's tool result shows it.
    answer = models.TextField(default="", blank=True)
    error_code = models.CharField(max_length=32, default="", blank=True)
    #: For operators. Readers get a fixed sentence for the code.
    error_detail = models.TextField(default="", blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancelled_by = KeyField(max_length=190, default="", blank=True)
    #: Inline runs only: who holds the run, and when it was last seen alive.
    owner = KeyField(max_length=190, default="", blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = PrimaryManager.from_queryset(RunQuerySet)()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        default_permissions = ("view",)
        permissions = [
            ("view_all_runs", "Can read runs and threads of other people"),
            ("view_run_payload", "Can read the journal and raw payloads of runs"),
            ("decide_any_toolcall", "Can decide tool calls of any approver"),
            ("settle_unknown", "Can settle a tool call whose outcome is unknown"),
            ("cancel_any_run", "Can cancel runs of other people"),
            ("manage_prices", "Can manage model prices"),
            ("use_playground", "Can use the playground"),
            ("pause_agents", "Can pause agents and tools"),
            ("cross_tenant", "Can read across tenants"),
        ]
        indexes = [
            models.Index(fields=["actor", "-created_at"], name="agora_run_actor"),
            models.Index(fields=["status", "-created_at"], name="agora_run_status"),
            models.Index(fields=["-created_at"], name="agora_run_newest"),
            models.Index(fields=["status", "durable", "heartbeat_at"], name="agora_run_stale"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=["running", "completed", "failed", "cancelled"]),
                name="agora_run_status_known",
            ),
            models.CheckConstraint(
                condition=models.Q(phase__in=["queued", "executing", "waiting", "ended"]),
                name="agora_run_phase_known",
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def is_terminal(self) -> bool:
        """True once the run has ended: it never changes again."""
        return self.status != self.Status.RUNNING


class IdempotencyKeyQuerySet(models.QuerySet["IdempotencyKey"]):
    """Keys by age."""

    def expired(self) -> IdempotencyKeyQuerySet:
        """Too old to stand for a send."""
        return self.filter(created_at__lte=DbNow() - IdempotencyKey.KEPT)


class IdempotencyKey(models.Model):
    """A send that was made before: the same key of the same actor gives the same run. Kept for 24 hours."""

    #: SHA-256 over tenant, actor kind, actor id, route and key.
    digest = KeyField(primary_key=True, max_length=64)
    #: SHA-256 over the canonical body: another body under the same key is refused.
    body_digest = KeyField(max_length=64)
    run = models.ForeignKey(AgentRun, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(db_default=DbNow(), db_index=True)

    #: How long a key stands for the send that it came with.
    KEPT = dt.timedelta(hours=24)

    objects = PrimaryManager.from_queryset(IdempotencyKeyQuerySet)()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.digest

    @classmethod
    def prune_expired(cls, limit: int = 500) -> int:
        """Delete up to ``limit`` expired keys, the oldest first; how many."""
        expired = cls.objects.expired()
        oldest = list(expired.order_by("created_at").values_list("pk", flat=True)[:limit])
        # Looked at again: one of them may stand for a new send by now.
        deleted: int = expired.filter(pk__in=oldest).delete()[0] if oldest else 0
        return deleted
