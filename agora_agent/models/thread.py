"""A conversation and its messages."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow
from agora_agent.ids import new_id
from agora_agent.models.fields import ActorMixin, CodecField, PrimaryManager


class ThreadQuerySet(models.QuerySet["Thread"]):
    """Threads by what they are."""

    def alive(self) -> ThreadQuerySet:
        """Conversations that people see: not deleted by their owner, not the transcript of a delegated run."""
        return self.filter(deleted_at=None, parent_run_id=None)


class Thread(ActorMixin):
    """A conversation of one actor. At most one run is active in it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    title = models.CharField(max_length=200, default="", blank=True)
    default_agent = models.CharField(max_length=64, default="", blank=True)
    persona = models.CharField(max_length=64, default="", blank=True)
    #: The run that holds this thread, claimed and released by compare-and-set.
    active_run_id = models.UUIDField(null=True, blank=True)
    #: Set for the transcript of a delegated run: the run that delegated. Never listed, never sent to.
    parent_run_id = models.UUIDField(null=True, blank=True)
    #: The number of the newest message; the row lock on this counter orders the messages.
    last_seq = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=DbNow())
    updated_at = models.DateTimeField(db_default=DbNow())
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = PrimaryManager.from_queryset(ThreadQuerySet)()

    class Meta:
        verbose_name = _("thread")
        verbose_name_plural = _("threads")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["actor", "-updated_at"], name="agora_thread_actor"),
            models.Index(fields=["-updated_at"], name="agora_thread_newest"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class Message(models.Model):
    """One message of a thread. Order is ``seq``, never time."""

    class Role(models.TextChoices):
        USER = "user", _("user")
        ASSISTANT = "assistant", _("assistant")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="messages")
    run_id = models.UUIDField(null=True, blank=True, db_index=True)
    seq = models.BigIntegerField()
    role = models.CharField(max_length=16, choices=Role)
    content = models.TextField(default="", blank=True)
    #: ``[{id, name, input}]`` that the assistant asked for, in call order.
    tool_calls = CodecField(default=list, blank=True)
    #: ``[{id, name, status, output | error}]`` for each of them, in call order.
    tool_results = CodecField(default=list, blank=True)
    model = models.CharField(max_length=190, default="", blank=True)
    created_at = models.DateTimeField(db_default=DbNow())

    objects = PrimaryManager()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        default_permissions = ("view",)
        ordering = ["thread", "seq"]
        constraints = [models.UniqueConstraint(fields=["thread", "seq"], name="agora_message_seq")]

    def __str__(self) -> str:
        return str(self.id)
