"""The event log of a top-level run: what readers of its stream get, in order."""

from __future__ import annotations

from django.db import models

from agora_agent.db import DbNow, KeyField
from agora_agent.models.fields import CodecField, PrimaryManager


class Stream(models.Model):
    """The counter and the end of one event log. Its id is the top-level run's."""

    id = models.UUIDField(primary_key=True)
    #: The newest frame's number. Writers queue on this row's lock, so numbers have no gap.
    last_seq = models.BigIntegerField(default=0)
    closed_at = models.DateTimeField(null=True, blank=True)
    #: ``done`` or ``error``: the unnumbered frame that ends the stream, and its data.
    terminal_event = models.CharField(max_length=16, default="", blank=True)
    terminal_data = CodecField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())

    objects = PrimaryManager()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


class Frame(models.Model):
    """One numbered frame."""

    # No database constraint: the counter update has already proved, under its lock, that the stream exists.
    stream = models.ForeignKey(Stream, on_delete=models.CASCADE, db_constraint=False, related_name="frames")
    seq = models.BigIntegerField()
    #: Empty for an unnamed frame (assistant text).
    event = KeyField(max_length=32, default="", blank=True)
    data = CodecField()
    created_at = models.DateTimeField(db_default=DbNow())

    objects = PrimaryManager()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["stream", "seq"], name="agora_frame_seq")]

    def __str__(self) -> str:
        return f"{self.stream_id}:{self.seq}"
