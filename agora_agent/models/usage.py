"""What a model call cost."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow
from agora_agent.models.fields import PrimaryManager
from agora_agent.models.run import AgentRun


class Usage(models.Model):
    """One provider request. Opened when the step is claimed, closed when it is settled; unknown stays null."""

    class State(models.TextChoices):
        OPEN = "open", _("open")
        REPORTED = "reported", _("reported")
        UNKNOWN = "unknown", _("unknown")

    run = models.ForeignKey(AgentRun, on_delete=models.CASCADE, related_name="usage")
    step = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField()
    purpose = models.CharField(max_length=32, default="chat")
    model = models.CharField(max_length=190, default="", blank=True)
    state = models.CharField(max_length=16, choices=State, default=State.OPEN)
    input_tokens = models.BigIntegerField(null=True, blank=True)
    output_tokens = models.BigIntegerField(null=True, blank=True)
    cache_read_tokens = models.BigIntegerField(null=True, blank=True)
    reasoning_tokens = models.BigIntegerField(null=True, blank=True)
    cost_usd = models.DecimalField(max_digits=18, decimal_places=9, null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())

    objects = PrimaryManager()

    class Meta:
        verbose_name = _("usage")
        verbose_name_plural = _("usage")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["run", "step", "attempt"], name="agora_usage_once"),
            models.CheckConstraint(
                condition=models.Q(state__in=["open", "reported", "unknown"]), name="agora_usage_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}:{self.step}:{self.attempt}"
