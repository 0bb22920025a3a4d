"""System checks: what is wrong with the project's set-up, each under a stable id and with a hint.

======  ====================================================================================================
E001    ``AGORA_AGENT`` has a key that is no setting
E002    a setting has the wrong type, or names something that cannot be imported
E003    ``DURABLE = "required"`` and the engine's app is not installed
E004    a module that declares agents cannot be imported
E005    an agent delegates to an agent that does not exist
E006    a tool's permission or approver is not written as ``app.codename``
E007    the app's tables are spread over two databases
E008    ``DISPATCHER`` needs an app that is not installed
W010    ``DURABLE`` is on and the engine's app is not installed: turns run inline
W011    the in-memory channel layer does not reach the other processes
W012    django-q2 runs a task again while it is still running (``retry`` <= ``timeout``)
W013    django-q2 has no ``timeout``
W014    django-q2 repeats failed tasks for ever (``ack_failures`` is off)
W015    SQLite without ``transaction_mode: IMMEDIATE``
W016    SQLite without a write-ahead log (with ``check --database``)
W017    no agent is registered
W018    a permission that nothing defines: nobody but a superuser can hold it
W019    ``ASGI_APPLICATION`` is not set: streams do not work under WSGI
W020    django-q2's own admin is registered
I021    no channel layer: streams poll the database
W022    an agent that others delegate to has no description for their models
======  ====================================================================================================

Whether the engine's tables are migrated is no check but a state: ``turn.runner.durable_state()``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, register
from django.core.checks import Warning as Caution
from django.db import connections, router

from agora_agent import conf
from agora_agent.agents import registry
from agora_agent.conf import agora_settings
from agora_agent.durable.dispatchers import NAMED as DISPATCHERS
from agora_agent.exceptions import ConfigurationError

ENGINE_APP = "agora_agent.durable"
#: The app that a dispatcher needs, and the dispatchers whose runs are driven where requests are served.
NEEDED_APPS = {"django_q": "django_q"}
EMBEDDED = ("thread", "immediate")

Level = type[Error] | type[Caution] | type[Info]
Finding = tuple[str, dict[str, object]]

#: id -> level, message, hint. The register above, in the words that a developer reads.
RULES: dict[str, tuple[Level, str, str]] = {
    "E001": (Error, "{message}", "{hint}"),
    "E002": (Error, "{message}", "{hint}"),
    "E003": (
        Error,
        'AGORA_AGENT["DURABLE"] is "required", but "agora_agent.durable" is not in INSTALLED_APPS.',
        'Add "agora_agent.durable" to INSTALLED_APPS and run migrate, or set DURABLE to False.',
    ),
    "E004": (
        Error,
        "The agents module {module!r} cannot be imported: {reason}",
        "Mend that module; the agents that it declares are missing until then. The log has the traceback.",
    ),
    "E005": (
        Error,
        "Agent {agent!r} delegates to {delegate!r}, which is not registered.",
        "Register that agent, or correct the name in delegates=.",
    ),
    "E006": (
        Error,
        "Tool {tool!r} of agent {agent!r} names the permission {permission!r}, which is not written as "
        "app.codename.",
        'Write it like "shop.refund_order"; for a group of people use approver="group:<name>".',
    ),
    "E007": (
        Error,
        "The tables of agora_agent are spread over several databases: {aliases}.",
        "Let DATABASE_ROUTERS send agora_agent and agora_durable to one alias: they share transactions.",
    ),
    "E008": (
        Error,
        'AGORA_AGENT["DISPATCHER"] = {dispatcher!r} needs {app!r} in INSTALLED_APPS.',
        'Install and add it, or choose the dispatcher "thread" or "worker".',
    ),
    "W010": (
        Caution,
        'AGORA_AGENT["DURABLE"] is on, but "agora_agent.durable" is not in INSTALLED_APPS: turns run inline '
        "and do not survive a restart.",
        'Add "agora_agent.durable" to INSTALLED_APPS and run migrate.',
    ),
    "W011": (
        Caution,
        "The in-memory channel layer does not reach other processes: streams there learn of new frames by "
        "polling only.",
        "Configure channels_redis in CHANNEL_LAYERS, or remove the layer and let streams poll.",
    ),
    "W012": (
        Caution,
        "Q_CLUSTER: retry ({retry}) is not greater than timeout ({timeout}): a task that still runs is "
        "handed out a second time.",
        "Set retry above timeout plus the longest wait in the queue, e.g. timeout 600 and retry 900.",
    ),
    "W013": (
        Caution,
        "Q_CLUSTER has no timeout: a task that hangs holds its worker for ever.",
        'Set timeout above AGORA_AGENT["STEP_DEADLINE_SECONDS"] or the longest step, and retry above it.',
    ),
    "W014": (
        Caution,
        "Q_CLUSTER: ack_failures is off: a task that fails is handed out again every {retry} seconds.",
        "Set ack_failures to True and max_attempts to 1; runs are recovered by their own leases.",
    ),
    "W015": (
        Caution,
        "SQLite database {alias!r} opens transactions deferred: concurrent writers fail with "
        '"database is locked".',
        'Set OPTIONS["transaction_mode"] = "IMMEDIATE" and a timeout.',
    ),
    "W016": (
        Caution,
        "SQLite database {alias!r} uses journal_mode {mode}: readers and writers block each other.",
        'Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;".',
    ),
    "W017": (
        Caution,
        "No agent is registered.",
        "Declare one in {module}.py of an installed app and pass it to agora_agent.register().",
    ),
    "W018": (
        Caution,
        "Tool {tool!r} of agent {agent!r} names the permission {permission!r}, which no model defines.",
        "Add it to Meta.permissions of a model, or correct its name: until then only superusers pass.",
    ),
    "W019": (
        Caution,
        "ASGI_APPLICATION is not set: under WSGI the stream routes answer 501.",
        "Set ASGI_APPLICATION and serve the project with daphne or uvicorn.",
    ),
    "W020": (
        Caution,
        "The admin of django-q2 is registered: its schedules run any dotted path, and its pages unpickle "
        "stored results.",
        "Unregister its models from the admin site, or let only superusers see them.",
    ),
    "W022": (
        Caution,
        "Agent {delegate!r} has no description, and {agent!r} delegates to it: its model is not told what for.",
        "Give the agent a description of one sentence.",
    ),
    "I021": (
        Info,
        "No channel layer is configured: streams find new frames by polling the database.",
        "That is fine for one process. For several, configure channels_redis in CHANNEL_LAYERS.",
    ),
}


def _setting_values() -> Iterator[Finding]:
    for kind, message, hint in conf.problems():
        yield ("E001" if kind == "unknown" else "E002"), {"message": message, "hint": hint}
    for name in conf.IMPORT_STRINGS:
        if not isinstance(getattr(agora_settings, name), str):
            continue
        try:
            conf.resolve(name)
        except ConfigurationError as error:
            yield (
                "E002",
                {"message": error.message, "hint": f"Correct the path, or leave {name} to its default."},
            )
        except Exception as error:  # whatever the named module does when it is imported
            message = f"AGORA_AGENT[{name!r}] cannot be imported: {type(error).__name__}: {error}"
            yield "E002", {"message": message, "hint": "Mend the module that the path names."}


def _setting_values_that_cannot_be_read() -> Iterator[Finding]:
    for _, message, hint in conf.problems():
        yield "E002", {"message": message, "hint": hint}


def _dispatcher() -> Iterator[Finding]:
    name = agora_settings.DISPATCHER
    if not isinstance(name, str):
        return
    if name in DISPATCHERS:
        needs = NEEDED_APPS.get(name, "")
        if needs and not apps.is_installed(needs):
            yield "E008", {"dispatcher": name, "app": needs}
    elif "." not in name:
        near = difflib.get_close_matches(name, DISPATCHERS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(DISPATCHERS)}, or a dotted path."
        yield "E002", {"message": f'AGORA_AGENT["DISPATCHER"] = {name!r} is not a dispatcher.', "hint": hint}
    else:
        try:
            conf.resolve("DISPATCHER")
        except ConfigurationError as error:
            yield "E002", {"message": error.message, "hint": "Correct the path to the dispatcher."}


def _engine_app() -> Iterator[Finding]:
    if agora_settings.DURABLE and not apps.is_installed(ENGINE_APP):
        yield ("E003" if agora_settings.DURABLE == "required" else "W010"), {}


def _agents() -> Iterator[Finding]:
    broken = registry.broken_modules()
    for module, reason in broken.items():
        yield "E004", {"module": module, "reason": str(reason).strip().splitlines()[-1]}
    known = registry.agents()
    for agent in known.values():
        for name in agent.delegates:
            if name not in known:
                yield "E005", {"agent": agent.name, "delegate": name}
            elif not known[name].description:
                yield "W022", {"agent": agent.name, "delegate": name}
    if not known and not broken:
        yield "W017", {"module": agora_settings.AGENTS_MODULE}


def _permissions() -> Iterator[Finding]:
    defined = {
        f"{model._meta.app_label}.{codename}"
        for model in apps.get_models()
        for codename in _codenames(model._meta)
    }
    for agent in registry.agents().values():
        for tool in agent.tools:
            for permission in _named_permissions(tool):
                app_label, dot, codename = permission.partition(".")
                found: dict[str, object] = {"tool": tool.name, "agent": agent.name, "permission": permission}
                if not (app_label and dot and codename) or "." in codename:
                    yield "E006", found
                elif permission not in defined:
                    yield "W018", found


def _codenames(meta: Any) -> Iterator[str]:
    yield from (f"{action}_{meta.model_name}" for action in meta.default_permissions)
    yield from (codename for codename, _ in meta.permissions)


def _named_permissions(tool: Any) -> Iterator[str]:
    if tool.permission:
        yield tool.permission
    approver = tool.approver or ""
    if approver and not approver.startswith("group:"):
        yield approver.removeprefix("permission:")


def _one_database() -> Iterator[Finding]:
    models = [
        model
        for label in ("agora_agent", "agora_durable")
        if apps.is_installed("agora_agent.durable" if label == "agora_durable" else label)
        for model in apps.get_app_config(label).get_models()
    ]
    aliases = {router.db_for_write(model) for model in models}
    if len(aliases) > 1:
        yield "E007", {"aliases": ", ".join(sorted(aliases))}


def _channel_layer() -> Iterator[Finding]:
    layer = getattr(settings, "CHANNEL_LAYERS", {}).get("default", {})
    if not layer:
        yield "I021", {}
    elif str(layer.get("BACKEND", "")).endswith("InMemoryChannelLayer") and (
        not settings.DEBUG or agora_settings.DISPATCHER not in EMBEDDED
    ):
        yield "W011", {}


def _django_q() -> Iterator[Finding]:
    if apps.is_installed("django_q") and _registered_in_admin("django_q"):
        yield "W020", {}
    if agora_settings.DISPATCHER != "django_q":
        return
    cluster: dict[str, Any] = getattr(settings, "Q_CLUSTER", {})
    retry, timeout = cluster.get("retry", 60), cluster.get("timeout")
    if timeout is None:
        yield "W013", {}
    elif retry is not None and retry <= timeout:
        yield "W012", {"retry": retry, "timeout": timeout}
    if not cluster.get("ack_failures", False):
        yield "W014", {"retry": retry}


def _registered_in_admin(label: str) -> bool:
    if not apps.is_installed("django.contrib.admin"):
        return False
    from django.contrib import admin

    return any(admin.site.is_registered(model) for model in apps.get_app_config(label).get_models())


def _asgi() -> Iterator[Finding]:
    if not getattr(settings, "ASGI_APPLICATION", None):
        yield "W019", {}


def _alias() -> str:
    return router.db_for_write(apps.get_model("agora_agent", "AgentRun"))


def _sqlite_transactions() -> Iterator[Finding]:
    alias = _alias()
    options = connections[alias].settings_dict.get("OPTIONS", {})
    sqlite = connections[alias].vendor == "sqlite"
    if sqlite and str(options.get("transaction_mode", "")).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
        yield "W015", {"alias": alias}


def _sqlite_journal(databases: Sequence[str]) -> Iterator[Finding]:
    alias = _alias()
    if alias not in databases or connections[alias].vendor != "sqlite":
        return
    with connections[alias].cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        [mode] = cursor.fetchone()
    # "memory" is a database without a file: one process, nobody to block.
    if mode not in {"wal", "memory"}:
        yield "W016", {"alias": alias, "mode": mode}


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _setting_values,
    _dispatcher,
    _engine_app,
    _agents,
    _permissions,
    _one_database,
    _channel_layer,
    _django_q,
    _asgi,
    _sqlite_transactions,
)


def _messages(findings: Iterable[Finding]) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    for number, values in findings:
        level, message, hint = RULES[number]
        messages.append(
            level(message.format(**values), hint=hint.format(**values), id=f"agora_agent.{number}")
        )
    return messages


@register("agora_agent")
def check_setup(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Everything that can be known without a database."""
    if not isinstance(getattr(settings, conf.SETTING, {}), dict):
        return _messages(_setting_values_that_cannot_be_read())
    return _messages(finding for check in CHECKS for finding in check())


@register(Tags.database, "agora_agent")
def check_database(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """What only the open database tells; runs with ``check --database`` and before ``migrate``."""
    return _messages(_sqlite_journal(databases or ()))
