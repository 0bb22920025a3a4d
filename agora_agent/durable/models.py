"""What the engine remembers: runs, their journal, tasks and signals.

References between these tables carry no database constraint: every insert has already proved, under the run row's
lock, that the run exists, and InnoDB's lock for the constraint would turn that order into deadlocks.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow, KeyField

MAX_DEPTH = 8


class Run(models.Model):
    """A workflow's run: narrow, because it is written often. Bodies are in :class:`RunBody`."""

    class Status(models.TextChoices):
        READY = "ready", _("ready")
        RUNNING = "running", _("running")
        SUSPENDED = "suspended", _("suspended")
        COMPLETED = "completed", _("completed")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")
        DEAD = "dead", _("dead")

    LIVE = (Status.READY, Status.RUNNING, Status.SUSPENDED)

    id = models.UUIDField(primary_key=True, editable=False)
    workflow = KeyField(max_length=100)
    version = models.PositiveIntegerField(default=1)
    tenant = KeyField(max_length=100, default="", blank=True)
    actor_id = KeyField(max_length=190, default="", blank=True)
    queue = KeyField(max_length=64, default="default")
    status = KeyField(max_length=12, choices=Status, default=Status.READY)
    #: The fence: one more with each claim and each terminal write from outside.
    epoch = models.BigIntegerField(default=0)
    #: Who drives it: unique for each claim, and says which process.
    owner = KeyField(max_length=190, default="", blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    #: One more with each fact that may matter to the run: it does not park on a number that has moved.
    doorbell = models.BigIntegerField(default=0)
    pending_tasks = models.IntegerField(default=0)
    #: What it is parked on, for people and for the check that the code still asks for it.
    wait_kind = KeyField(max_length=12, default="", blank=True)
    wait_key = KeyField(max_length=255, default="", blank=True)
    wait_pos = KeyField(max_length=64, default="", blank=True)
    available_at = models.DateTimeField(db_default=DbNow())
    hinted_at = models.DateTimeField(null=True, blank=True)
    #: Takeovers without progress, and how long the journal was at the last one.
    crashes = models.PositiveSmallIntegerField(default=0)
    crash_rows = models.PositiveIntegerField(default=0)
    #: How many patches the process of the first claim knew.
    patch_level = models.PositiveIntegerField(null=True, blank=True)
    parent = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        db_constraint=False,
        on_delete=models.DO_NOTHING,
        related_name="children",
    )
    parent_pos = KeyField(max_length=64, default="", blank=True)
    root_id = models.UUIDField(db_index=True)
    depth = models.PositiveSmallIntegerField(default=0)
    #: A request to stop, not yet the outcome.
    cancel_at = models.DateTimeField(null=True, blank=True)
    cancel_by = KeyField(max_length=190, default="", blank=True)
    cancel_reason = models.CharField(max_length=255, default="", blank=True)
    created_at = models.DateTimeField(db_default=DbNow())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "agora_run"
        verbose_name = _("workflow run")
        verbose_name_plural = _("workflow runs")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["status", "queue", "available_at"], name="agora_engine_run_due"),
            models.Index(fields=["status", "lease_until"], name="agora_engine_run_lease"),
            models.Index(fields=["tenant", "created_at"], name="agora_engine_run_tenant"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(
                    status__in=[
                        "ready",
                        "running",
                        "suspended",
                        "completed",
                        "failed",
                        "cancelled",
                        "dead",
                    ]
                ),
                name="agora_engine_run_status",
            ),
            models.CheckConstraint(condition=models.Q(pending_tasks__gte=0), name="agora_engine_run_pending"),
            models.CheckConstraint(condition=models.Q(depth__lte=MAX_DEPTH), name="agora_engine_run_depth"),
        ]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def is_terminal(self) -> bool:
        """True once the run has ended: it never changes again."""
        return self.status not in self.LIVE


class RunBody(models.Model):
    """What a run was started with and what came of it, in the codec's text."""

    run = models.OneToOneField(
        Run, primary_key=True, db_constraint=False, on_delete=models.DO_NOTHING, related_name="body"
    )
    input = models.TextField()
    output = models.TextField(null=True, blank=True)  # noqa: DJ001 - NULL is "nothing recorded", "null" is None
    error_code = KeyField(max_length=64, default="", blank=True)
    error_detail = models.TextField(default="", blank=True)

    class Meta:
        db_table = "agora_run_body"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.run_id)


class Journal(models.Model):
    """What has happened in a run: replaying the code over these rows gives the run's state."""

    class Kind(models.TextChoices):
        STEP = "step", _("step")
        TASK = "task", _("task")
        SIGNAL = "signal", _("signal")
        CHILD = "child", _("child")

    run = models.ForeignKey(
        Run, db_constraint=False, db_index=False, on_delete=models.DO_NOTHING, related_name="journal"
    )
    pos = KeyField(max_length=64)
    name = KeyField(max_length=255)
    kind = KeyField(max_length=12, choices=Kind)
    ok = models.BooleanField(default=True)
    payload = models.TextField()
    codec = models.PositiveSmallIntegerField(default=1)
    #: The claim that wrote the row.
    epoch = models.BigIntegerField()
    #: Random for each attempt to write: tells an own commit whose acknowledgement was lost from another's.
    token = KeyField(max_length=32)
    created_at = models.DateTimeField(db_default=DbNow())

    class Meta:
        db_table = "agora_journal"
        verbose_name = _("journal entry")
        verbose_name_plural = _("journal entries")
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["run", "pos"], name="agora_engine_journal_pos")]

    def __str__(self) -> str:
        return f"{self.run_id} {self.pos} {self.name}"


class Task(models.Model):
    """Work of a run for any process that serves its queue. The row is also the intent of an at-most-once step."""

    class Status(models.TextChoices):
        QUEUED = "queued", _("queued")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        IN_DOUBT = "in_doubt", _("in doubt")
        CANCELLED = "cancelled", _("cancelled")

    OPEN = (Status.QUEUED, Status.RUNNING)

    id = models.UUIDField(primary_key=True, editable=False)
    run = models.ForeignKey(
        Run, db_constraint=False, db_index=False, on_delete=models.DO_NOTHING, related_name="tasks"
    )
    pos = KeyField(max_length=64)
    name = KeyField(max_length=255)
    step = KeyField(max_length=100)
    request = models.TextField()
    queue = KeyField(max_length=64, default="default")
    mode = KeyField(max_length=16)
    status = KeyField(max_length=12, choices=Status, default=Status.QUEUED)
    epoch = models.BigIntegerField(default=0)
    owner = KeyField(max_length=190, default="", blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    deadline_seconds = models.FloatField(null=True, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    max_attempts = models.PositiveSmallIntegerField(default=3)
    available_at = models.DateTimeField(db_default=DbNow())
    hinted_at = models.DateTimeField(null=True, blank=True)
    result = models.TextField(null=True, blank=True)  # noqa: DJ001 - NULL is "no result yet"
    #: The result came after the run had ended: kept here, not in the journal.
    late = models.BooleanField(default=False)
    last_error = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(db_default=DbNow())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "agora_task"
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["status", "queue", "available_at"], name="agora_engine_task_due"),
            models.Index(fields=["status", "lease_until"], name="agora_engine_task_lease"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "pos"], name="agora_engine_task_pos"),
            models.CheckConstraint(
                condition=models.Q(status__in=["queued", "running", "done", "in_doubt", "cancelled"]),
                name="agora_engine_task_status",
            ),
            models.CheckConstraint(
                condition=models.Q(mode__in=["at_least_once", "at_most_once"]),
                name="agora_engine_task_mode",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.pos} {self.name}"


class Signal(models.Model):
    """A fact sent to a run, kept until a wait consumes it."""

    run = models.ForeignKey(
        Run, db_constraint=False, db_index=False, on_delete=models.DO_NOTHING, related_name="signals"
    )
    key = KeyField(max_length=255)
    dedupe = KeyField(max_length=80)
    payload = models.TextField()
    actor = KeyField(max_length=190, default="", blank=True)
    consumed_pos = KeyField(max_length=64, default="", blank=True)
    created_at = models.DateTimeField(db_default=DbNow())

    class Meta:
        db_table = "agora_signal"
        verbose_name = _("signal")
        verbose_name_plural = _("signals")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["run", "key", "dedupe"], name="agora_engine_signal_once")
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.key}"
