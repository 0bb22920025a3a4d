"""One tree of errors, each with a stable ``code``, and the control flow that is not an error."""

from __future__ import annotations

from typing import Any


class AgoraError(Exception):
    """Something went wrong in agora_agent."""

    code = "error"
    #: The HTTP status that the wire contract gives this code.
    status_code = 500

    def __init__(self, message: str = "", **details: Any) -> None:
        self.message = message or (self.__doc__ or "").strip().splitlines()[0]
        #: Extra members for a machine that reads the error (the standing decision, per-field errors, …).
        self.details = details
        super().__init__(self.message)


class ConfigurationError(AgoraError):
    """A setting is missing, unknown or of the wrong type."""

    code = "configuration"


class InvalidInput(AgoraError):
    """The request is not valid."""

    code = "invalid"
    status_code = 400


class Ambiguous(AgoraError):
    """More than one waiting call has this toolCallId: send its runId too."""

    code = "ambiguous"
    status_code = 400


class Unauthenticated(AgoraError):
    """Sign in first."""

    code = "not_authenticated"
    status_code = 401


class Forbidden(AgoraError):
    """You may see this, but it is not yours to do."""

    code = "forbidden"
    status_code = 403


class NotVisible(AgoraError):
    """There is nothing here that you may see."""

    code = "not_found"
    status_code = 404


class RunActive(AgoraError):
    """This thread already has a run that has not ended: wait for it or cancel it."""

    code = "run_active"
    status_code = 409


class RunNotActive(AgoraError):
    """The run has ended: nothing can be decided in it any more."""

    code = "run_not_active"
    status_code = 409


class AlreadyDecided(AgoraError):
    """Somebody decided this before you; the decision that stands is in ``decision``."""

    code = "already_decided"
    status_code = 409


class WrongReply(AgoraError):
    """This kind of reply does not fit what the call waits for."""

    code = "wrong_reply"
    status_code = 409


class Changed(AgoraError):
    """What you were shown is not what would run: look again, then decide."""

    code = "changed"
    status_code = 409


class Expired(AgoraError):
    """The time to decide is over."""

    code = "expired"
    status_code = 410


class IdempotencyConflict(AgoraError):
    """This Idempotency-Key was used before with another body."""

    code = "idempotency_conflict"
    status_code = 422


class LimitExceeded(AgoraError):
    """A limit is reached."""

    code = "limit_exceeded"
    status_code = 429


class StreamNeedsAsgi(AgoraError):
    """Streams need an ASGI server (daphne, uvicorn): this process runs under WSGI."""

    code = "stream_needs_asgi"
    status_code = 501


class Busy(AgoraError):
    """No capacity right now: try again in a moment."""

    code = "busy"
    status_code = 503


class ToolError(AgoraError):
    """Raised by a tool to tell the model, in words that may be shown, why it could not do its work."""

    code = "tool_failed"


class ModelFailed(AgoraError):
    """The model could not be asked, or its answer could not be used."""

    code = "model_failed"

    def __init__(self, message: str = "", *, retryable: bool = False, **details: Any) -> None:
        super().__init__(message, **details)
        self.retryable = retryable


class ModelNoOutput(ModelFailed):
    """The model answered with nothing."""

    code = "model_no_output"


class ControlFlow(BaseException):
    """Not an error: the body is left on purpose. Derives from BaseException so that no ``except Exception``
    in a tool, a hook or a wrapper swallows it."""


class WorkflowSuspended(ControlFlow):
    """The run is parked; it will be driven again when what it waits for arrives."""


class ContinueAsNew(ControlFlow):
    """The run goes on as a new one with a clean history."""


class RunCancelled(ControlFlow):
    """The run was asked to stop."""


class Fenced(ControlFlow):
    """Somebody else owns the run or task now: leave without another write."""


class NonDeterminismError(ControlFlow):
    """The code reached another checkpoint than the journal holds at this position."""

    code = "replay_diverged"

    def __init__(self, position: str, recorded: str, requested: str) -> None:
        self.position, self.recorded, self.requested = position, recorded, requested
        super().__init__(
            f"position {position}: the journal holds {recorded!r}, the code asked for {requested!r}"
        )


_REPLAY_INTEGRITY = {"NonDeterminismError", "WorkflowNondeterminismError"}
_CONTROL_FLOW = {"WorkflowSuspended", "ContinueAsNew", "RunCancelled", "Fenced"}


def is_replay_integrity_error(error: object) -> bool:
    """True if ``error`` is an engine's refusal of a position. By class name: engines spell theirs apart."""
    return any(cls.__name__ in _REPLAY_INTEGRITY for cls in type(error).__mro__)


def is_control_flow(error: object) -> bool:
    """True if ``error`` must be re-raised untouched: a suspend, a cancel, a fence or a replay refusal."""
    return (
        isinstance(error, ControlFlow)
        or is_replay_integrity_error(error)
        or any(cls.__name__ in _CONTROL_FLOW for cls in type(error).__mro__)
    )


_READER_SENTENCES = {
    "quota_exceeded": "Your quota for this period is used up.",
    "limit_exceeded": "A limit of this agent was reached.",
    "replay_diverged": "The agent's program changed while this run waited. An operator has to look at it.",
    "model_failed": "The model could not be reached or gave an answer that cannot be used. Try again.",
    "model_no_output": "The model gave no answer. Try again.",
    "run_failed": "Something went wrong in this run. It was stopped.",
    "interrupted": "The process that worked on this run ended. Try again.",
}


def reader_message(code: str, detail: str = "", *, expose: bool = False) -> str:
    """What readers of a failed run are told: a fixed sentence for its code; the detail only where it may show."""
    sentence = _READER_SENTENCES.get(code, _READER_SENTENCES["run_failed"])
    return f"{sentence} ({detail})" if expose and detail else sentence
