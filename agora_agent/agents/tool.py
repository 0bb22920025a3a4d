"""A tool: a function that a model may call, what it takes, and what must be true before it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, overload
from uuid import UUID

from agora_agent.abort import AbortSignal
from agora_agent.agents.arguments import InvalidToolInput, typed, validate_schema, validate_signature
from agora_agent.agents.execution import run_handler
from agora_agent.agents.schemas import close, schema_digest
from agora_agent.agents.signature import Signature, first_paragraph, read_signature
from agora_agent.exceptions import ConfigurationError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser

__all__ = ["InvalidToolInput", "Tool", "ToolContext", "ToolKind", "tool", "valid_name"]

ToolKind = Literal["read", "action", "ask", "agent"]
Tier = Literal["", "confirm", "authorise"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VERSION = re.compile(r"[A-Za-z0-9._-]{1,32}")


def valid_name(name: object) -> bool:
    """True for names that may travel: agents, tools, personas."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class EmitComponent(Protocol):
    """Shows a component of the host's own to whoever follows the run."""

    def __call__(self, name: str, data: dict[str, Any], id: str | None = None) -> str: ...  # noqa: A002


def _no_components(name: str, data: dict[str, Any], id: str | None = None) -> str:  # noqa: A002
    return id or ""


@dataclass
class ToolContext:
    """What a tool may know about the call that it serves."""

    #: Whom the run works for, loaded anew for this call.
    user: AbstractBaseUser | AnonymousUser | None
    run_id: UUID
    thread_id: UUID
    tool_call_id: str
    #: The same again if the call runs again: hand it on to whatever has the effect.
    idempotency_key: str
    abort_signal: AbortSignal
    page_context: dict[str, Any] | None = None
    emit_component: EmitComponent = _no_components
    agent: str = ""
    tenant: str = ""


class Preview(Protocol):
    """Says in one sentence what a call would do, for the person who decides."""

    def __call__(self, ctx: ToolContext, /, **arguments: Any) -> str: ...


@dataclass(frozen=True)
class Tool:
    """A declared tool. Made by :func:`tool`."""

    name: str
    kind: ToolKind
    description: str
    schema: dict[str, Any] = field(repr=False, hash=False)
    handler: Callable[..., Any] = field(repr=False)
    #: The Django permission that the run's user needs.
    permission: str | None = None
    #: Who may decide: ``None`` (whoever the run works for), ``permission:app.codename`` or ``group:name``.
    approver: str | None = None
    tier: Tier = ""
    #: How long a person may take to decide.
    expires_after: timedelta | None = None
    preview: Callable[..., str] | None = field(default=None, repr=False)
    #: Safe to run again with the same idempotency key when nobody knows whether it ran.
    idempotent: bool = False
    timeout: timedelta | None = None
    queue: str = "default"
    version: str = "1"
    #: Arguments that are hidden from readers who need not see them.
    redact: tuple[str, ...] = ()
    #: ``module:qualname`` of the function. Recorded, never compared.
    module: str = ""
    signature: Signature | None = field(default=None, repr=False, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as Python code calls it."""
        return self.handler(*args, **kwargs)

    @cached_property
    def identity(self) -> str:
        """``name:version:digest of the schema``: an approval is good for this and nothing else."""
        return f"{self.name}:{self.version}:{schema_digest(self.schema)}"

    def validate(self, raw: object) -> dict[str, Any]:
        """``raw`` checked and completed: exactly the arguments that are stored, shown and executed.

        Raises:
            InvalidToolInput: it does not fit; the message is for the model, ``details["errors"]`` for a form.
        """
        if self.signature is None:
            return validate_schema(self.schema, raw)
        return validate_signature(self.signature, raw)

    def call(self, ctx: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """Run the handler with validated ``arguments`` in this thread and return what it returns.

        Raises:
            InvalidToolInput: ``arguments`` are not what :meth:`validate` gave.
            RunCancelled: ``ctx.abort_signal`` stopped an async handler.
        """
        return run_handler(self.handler, *self._bound(ctx, arguments), ctx.abort_signal)

    def render_preview(self, ctx: ToolContext, arguments: Mapping[str, Any]) -> str:
        """What the call would do, in the words of ``preview``; empty without one."""
        if self.preview is None:
            return ""
        values = dict(arguments) if self.signature is None else typed(self.signature, arguments)
        return str(run_handler(self.preview, (ctx,), values, ctx.abort_signal))

    def _bound(
        self, ctx: ToolContext, arguments: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.signature is None:
            return (ctx,), dict(arguments)
        values = typed(self.signature, arguments)
        if self.signature.context:
            values[self.signature.context] = ctx
        return (), values


@overload
def tool(kind: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    kind: ToolKind = "read",
    *,
    name: str | None = None,
    description: str | None = None,
    permission: str | None = None,
    approver: str | None = None,
    tier: str | None = None,
    expires_after: timedelta | None = None,
    preview: Callable[..., str] | None = None,
    idempotent: bool = False,
    timeout: timedelta | None = None,
    queue: str = "default",
    version: str = "1",
    redact: tuple[str, ...] = (),
    input_schema: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    kind: ToolKind | Callable[..., Any] = "read",
    *,
    name: str | None = None,
    description: str | None = None,
    permission: str | None = None,
    approver: str | None = None,
    tier: str | None = None,
    expires_after: timedelta | None = None,
    preview: Callable[..., str] | None = None,
    idempotent: bool = False,
    timeout: timedelta | None = None,
    queue: str = "default",
    version: str = "1",
    redact: tuple[str, ...] = (),
    input_schema: dict[str, Any] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool: ``@tool`` or ``@tool(kind="action", approver="group:Managers")``.

    Args:
        kind: "read" runs unasked; "action" has an effect and waits for a person; "ask" asks the person
            something; "agent" hands a task to another agent.
        name: what the model calls it; the function's name without it.
        description: what the model is told about it; the docstring's first paragraph without it.
        permission: the Django permission that the run's user needs.
        approver: who decides about an action: nobody named, the person whom the run works for confirms;
            "permission:app.codename" or "group:name", somebody else authorises.
        tier: "confirm" or "authorise"; follows from ``approver``.
        expires_after: how long a person may take.
        preview: called with the context and the arguments, says what the call would do.
        idempotent: may run again with the same ``ctx.idempotency_key``.
        timeout: how long a call may take.
        queue: which workers run it.
        version: change it when the tool does something else with the same arguments.
        redact: arguments that are hidden from readers who need not see them.
        input_schema: a JSON schema (Draft 2020-12) in place of the signature; the function is then called
            as ``function(ctx, **arguments)``.

    Raises:
        ConfigurationError: the declaration makes no sense.
    """
    localns = _callers_names()
    if callable(kind):
        return tool("read")(kind)
    approver = _approver(approver)

    def declare(function: Callable[..., Any]) -> Tool:
        signature = None if input_schema is not None else read_signature(function, ToolContext, localns)
        declared = Tool(
            name=name or function.__name__,
            kind=kind,
            description=first_paragraph(function) if description is None else description,
            schema=close(input_schema) if signature is None else signature.schema,  # type: ignore[arg-type]
            handler=function,
            permission=permission,
            approver=approver,
            tier=_tier(kind, tier, approver),
            expires_after=expires_after,
            preview=preview,
            idempotent=idempotent,
            timeout=timeout,
            queue=queue,
            version=version,
            redact=tuple(redact),
            module=f"{function.__module__}:{function.__qualname__}",
            signature=signature,
        )
        if problem := _problem(declared):
            raise ConfigurationError(f"Tool {declared.name!r} ({declared.module}): {problem}")
        return declared

    return declare


def _callers_names() -> dict[str, Any]:
    # A tool declared inside a function may name types that only that function knows.
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _approver(approver: str | None) -> str | None:
    if approver is None:
        return None
    prefix, colon, rest = approver.partition(":")
    if not colon:
        prefix, rest = "permission", approver
    if prefix not in ("permission", "group") or not rest or (prefix == "permission" and "." not in rest):
        raise ConfigurationError(
            f"approver={approver!r} names nobody. Write 'permission:app.codename' or 'group:name'."
        )
    return f"{prefix}:{rest}"


def _tier(kind: ToolKind, tier: str | None, approver: str | None) -> Tier:
    if kind != "action":
        if tier or approver:
            raise ConfigurationError(f"Only an action waits for approval, not a tool of kind {kind!r}.")
        return ""
    if tier not in (None, "confirm", "authorise"):
        raise ConfigurationError(f"tier={tier!r}: write 'confirm' or 'authorise'.")
    if tier == "authorise" and approver is None:
        raise ConfigurationError("tier='authorise' needs an approver: somebody else than the requester.")
    if tier == "confirm" and approver is not None:
        raise ConfigurationError("tier='confirm' asks the requester: leave approver out.")
    return "authorise" if approver else "confirm"


def _problem(declared: Tool) -> str:
    if declared.kind not in get_args(ToolKind):
        return f"kind={declared.kind!r} is none of {', '.join(get_args(ToolKind))}."
    if not valid_name(declared.name):
        return "a name is lower-case letters, digits and underscores, begins with a letter, at most 64."
    if not _VERSION.fullmatch(declared.version):
        return "a version is 1 to 32 letters, digits, dots, dashes or underscores."
    if declared.permission is not None and "." not in declared.permission:
        return f"permission={declared.permission!r}: write 'app.codename'."
    if unknown := set(declared.redact) - set(declared.schema.get("properties", {})):
        return f"redact names no argument: {', '.join(sorted(unknown))}."
    return ""
