"""What a person said about a tool call."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from agora_agent.db import DbNow, KeyField
from agora_agent.ids import new_id
from agora_agent.models.fields import CodecField, PrimaryManager
from agora_agent.models.tool_call import ToolCall


class Decision(models.Model):
    """One reply of one person in one round of a call. Written once, by ``governance.decisions`` alone."""

    class Verdict(models.TextChoices):
        APPROVE = "approve", _("approve")
        REJECT = "reject", _("reject")
        ANSWER = "answer", _("answer")
        SKIP = "skip", _("skip")
        SETTLE = "settle", _("settle")
        EXPIRE = "expire", _("expire")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tool_call = models.ForeignKey(ToolCall, on_delete=models.CASCADE, related_name="decisions")
    round = models.PositiveSmallIntegerField(default=1)
    verdict = models.CharField(max_length=16, choices=Verdict)
    #: True for the one that ended the round; the wait consumes only this one.
    is_outcome = models.BooleanField(default=True)
    principal = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    principal_ref = KeyField(max_length=190, default="", blank=True)
    #: The door as the server knows it.
    via = models.CharField(max_length=16)
    auth_method = models.CharField(max_length=64, default="", blank=True)
    address = models.CharField(max_length=64, default="", blank=True)
    #: The client's own word for itself: shown, never trusted.
    client_label = models.CharField(max_length=64, default="", blank=True)
    #: The arguments that were decided about.
    digest = KeyField(max_length=64, default="", blank=True)
    reason = models.TextField(default="", blank=True)
    #: Answers to questions, or the outcome that settles an unknown one.
    reply = CodecField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())

    objects = PrimaryManager()

    class Meta:
        verbose_name = _("decision")
        verbose_name_plural = _("decisions")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(
                fields=["tool_call", "round", "principal_ref", "verdict"], name="agora_decision_once"
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)
