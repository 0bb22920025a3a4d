"""Why a decision was not taken, as a message beside the decision that stands."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.utils import formats, timezone
from django.utils.translation import gettext as _

from agora_agent.admin import words
from agora_agent.exceptions import (
    AgoraError,
    AlreadyDecided,
    Changed,
    Expired,
    Forbidden,
    NotVisible,
    RunNotActive,
    WrongReply,
)
from agora_agent.models import ToolCall
from agora_agent.templatetags.agora_admin import aware


def outcome_of(error: AgoraError, call: Any) -> tuple[int, str]:
    """Message level and sentence for what ``decide`` raised about ``call``."""
    match error:
        case AlreadyDecided():
            return messages.WARNING, _already(call)
        case Expired():
            return messages.WARNING, _("The time to decide is over: nothing runs.")
        case Changed():
            return (
                messages.WARNING,
                _("The call has changed since this page was loaded. Look at it again, then decide."),
            )
        case RunNotActive():
            return messages.WARNING, _("The run has ended: nothing can be decided in it any more.")
        case NotVisible():
            return messages.ERROR, _("There is nothing here that you may decide.")
        case WrongReply():
            return messages.ERROR, _("This call waits for another kind of reply.")
        case Forbidden():
            return messages.ERROR, _("Not decided: %(why)s") % {"why": error.message}
    return messages.ERROR, _("Not decided: %(why)s") % {"why": error.message}


def _already(call: Any) -> str:
    now = ToolCall.objects.select_related("decided_by", "run").get(pk=call.pk)
    stands = words.standing(now).headline
    if now.decided_at is None:
        return _("Already settled: %(stands)s. Your reply was not needed.") % {"stands": stands}
    local = timezone.localtime(aware(now.decided_at))
    return _("Already decided: %(stands)s, %(at)s. Your reply was not needed.") % {
        "stands": stands,
        "at": formats.date_format(local, "DATETIME_FORMAT"),
    }
