from __future__ import annotations

import re

import pytest
from django.core.checks import Error, run_checks
from django.test import override_settings

from agora_agent import Agent, checks, tool
from agora_agent.agents import registry
from tests.support.project import Project

ENGINE = "agora_agent.durable"
RIGHT = {
    "AGORA_AGENT": {"MODEL_PROVIDER": "agora_agent.testing.scripted.ScriptedModel"},
    "ASGI_APPLICATION": "project.asgi.application",
    "CHANNEL_LAYERS": {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}},
    "Q_CLUSTER": {"timeout": 600, "retry": 900, "ack_failures": True},
}


def found(**wrong):
    """Ids of what the checks say about settings that are right but for ``wrong``."""
    options = dict(wrong.pop("AGORA_AGENT", {})) if isinstance(wrong.get("AGORA_AGENT", {}), dict) else None
    values = {**RIGHT, **wrong}
    if options is not None:
        values["AGORA_AGENT"] = {**RIGHT["AGORA_AGENT"], **options}
    with override_settings(**values):
        messages = checks.check_setup(None)
    for message in messages:
        assert message.hint, message
    return {message.id.removeprefix("agora_agent."): message for message in messages}


@pytest.fixture(autouse=True)
def one_good_agent():
    @tool(kind="action", permission="clerk.wipe", approver="agora_agent.cancel_any_run")
    def sweep(what: str) -> str:
        """Sweep."""
        return what

    with registry.isolated():
        registry.clear()
        registry.register(Agent(name="good", instructions="", tools=[sweep], public=True))
        yield


def without(*apps):
    from django.conf import settings

    return [app for app in settings.INSTALLED_APPS if app not in apps]


def test_a_right_setup_is_silent():
    assert found() == {}


def test_an_unknown_setting_is_named_with_its_nearest():
    message = found(AGORA_AGENT={"DURABEL": True})["E001"]
    assert "'DURABEL'" in message.msg
    assert "'DURABLE'" in message.hint
    assert isinstance(message, Error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"MAX_STEPS": "8"},
        {"MAX_STEPS": True},
        {"MAX_STEPS": 0},
        {"DURABLE": "yes"},
        {"LEASE_SECONDS": -1.0},
        {"MODEL_PROVIDER": "no.such.Thing"},
        {"TOOL_POLICY": "agora_agent.governance.policy.NoSuchPolicy"},
        {"ACTOR_RESOLVER": 3},
        {"DISPATCHER": "thred"},
        {"DISPATCHER": "no.such.Dispatcher"},
        {"DISPATCHER": None},
    ],
)
def test_a_setting_of_the_wrong_type_or_path_is_an_error(wrong):
    message = found(AGORA_AGENT=wrong)["E002"]
    [name] = wrong
    assert name in message.msg


def test_the_nearest_dispatcher_is_suggested():
    assert "'thread'" in found(AGORA_AGENT={"DISPATCHER": "thred"})["E002"].hint


def test_settings_that_are_no_dict_are_one_error():
    with override_settings(AGORA_AGENT=["DURABLE"]):
        [message] = checks.check_setup(None)
    assert message.id == "agora_agent.E002"


def test_a_module_that_breaks_at_import_is_named(monkeypatch, tmp_path):
    (tmp_path / "breaks_at_import.py").write_text("raise RuntimeError('no key')")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = found(AGORA_AGENT={"MODEL_PROVIDER": "breaks_at_import.Provider"})["E002"]
    assert "no key" in message.msg


@pytest.mark.parametrize(("durable", "expected"), [(True, {"W010"}), ("required", {"E003"}), (False, set())])
def test_durable_without_the_engines_app(durable, expected):
    assert set(found(INSTALLED_APPS=without(ENGINE), AGORA_AGENT={"DURABLE": durable})) == expected


@pytest.mark.parametrize("durable", [True, "required"])
def test_durable_with_the_engines_app_is_silent(durable):
    assert found(AGORA_AGENT={"DURABLE": durable}) == {}


def test_a_dispatcher_whose_app_is_missing():
    assert "django_q" in found(AGORA_AGENT={"DISPATCHER": "django_q"})["E008"].msg


def test_a_broken_agents_module_is_named(monkeypatch, tmp_path, settings):
    (tmp_path / "broken_app").mkdir()
    (tmp_path / "broken_app" / "__init__.py").write_text("")
    (tmp_path / "broken_app" / "agents.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    with override_settings(INSTALLED_APPS=["broken_app", *settings.INSTALLED_APPS]):
        registry.autodiscover()
        message = found()["E004"]
    assert "broken_app.agents" in message.msg
    assert "no_such_module" in message.msg


def test_no_agent_is_a_warning():
    registry.clear()
    assert set(found()) == {"W017"}


def test_an_unknown_delegate_is_named():
    registry.register(Agent(name="boss", instructions="", tools=[], delegates=["nobody"], public=True))
    message = found()["E005"]
    assert "'boss'" in message.msg
    assert "'nobody'" in message.msg


def test_a_delegate_without_a_description_is_a_warning():
    registry.register(Agent(name="boss", instructions="", tools=[], delegates=["good"], public=True))
    assert set(found()) == {"W022"}


def test_a_permission_that_nothing_defines_is_a_warning():
    @tool(kind="action", permission="shop.no_such", approver="clerk.nor_this")
    def sweep_too(what: str) -> str:
        """Sweep."""
        return what

    registry.register(Agent(name="other", instructions="", tools=[sweep_too], public=True))
    with override_settings(**RIGHT):
        told = [message.msg for message in checks.check_setup(None) if message.id == "agora_agent.W018"]
    assert ["shop.no_such" in told[0], "clerk.nor_this" in told[1]] == [True, True]


@pytest.mark.parametrize("name", ["wipe", "clerk.shelf.wipe", ".wipe", "clerk."])
def test_a_permission_that_is_not_written_as_app_and_codename_is_an_error(name):
    from dataclasses import replace

    [sweep] = registry.agents()["good"].tools
    registry.register(
        Agent(name="other", instructions="", tools=[replace(sweep, permission=name)], public=True)
    )
    assert repr(name) in found()["E006"].msg


def test_a_group_as_approver_is_no_permission():
    @tool(kind="action", approver="group:keepers")
    def sweep_too(what: str) -> str:
        """Sweep."""
        return what

    registry.register(Agent(name="other", instructions="", tools=[sweep_too], public=True))
    assert found() == {}


class Split:
    """Sends the threads away from everything else."""

    def db_for_write(self, model, **hints):
        return "other" if model._meta.model_name == "thread" else None


def test_tables_on_two_databases_are_an_error():
    assert "default, other" in found(DATABASE_ROUTERS=[f"{__name__}.Split"])["E007"].msg


MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


@pytest.mark.parametrize(
    ("debug", "dispatcher", "expected"),
    [(True, "thread", set()), (False, "thread", {"W011"}), (True, "worker", {"W011"})],
)
def test_the_in_memory_layer_is_for_one_process_at_a_desk(debug, dispatcher, expected):
    assert set(found(DEBUG=debug, CHANNEL_LAYERS=MEMORY, AGORA_AGENT={"DISPATCHER": dispatcher})) == expected


@pytest.mark.parametrize("layers", [{}, {"other": {"BACKEND": "x"}}])
def test_without_a_layer_streams_poll(layers):
    assert set(found(CHANNEL_LAYERS=layers)) == {"I021"}


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"timeout": 600, "retry": 600, "ack_failures": True}, "W012"),
        ({"timeout": 90, "ack_failures": True}, "W012"),
        ({"retry": 900, "ack_failures": True}, "W013"),
        ({"timeout": 600, "retry": 900}, "W014"),
    ],
)
def test_a_cluster_that_repeats_tasks(cluster, expected):
    # The queue's app is not installed here: that is the other finding.
    assert set(found(Q_CLUSTER=cluster, AGORA_AGENT={"DISPATCHER": "django_q"})) == {"E008", expected}
    assert found(Q_CLUSTER=cluster) == {}


ADMIN = """
INSTALLED_APPS += ["django.contrib.sessions", "django.contrib.messages", "django.contrib.admin", "django_q"]
Q_CLUSTER = {"orm": "default", "timeout": 600, "retry": 900, "ack_failures": True}
"""


@pytest.mark.parametrize(("more", "warned"), [("", True), ('INSTALLED_APPS.remove("django_q")\n', False)])
def test_the_queues_admin_is_a_warning(tmp_path, more, warned):
    pytest.importorskip("django_q")
    output = Project(tmp_path, ADMIN + more).manage("check", "--tag", "agora_agent")
    assert ("agora_agent.W020" in output) == warned


def test_no_asgi_application_is_a_warning():
    assert set(found(ASGI_APPLICATION=None)) == {"W019"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"W015", "W016"}),
        ({"transaction_mode": "DEFERRED", "init_command": "PRAGMA journal_mode=WAL;"}, {"W015"}),
        ({"transaction_mode": "IMMEDIATE"}, {"W016"}),
        ({"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}, set()),
    ],
)
def test_sqlite_lets_several_processes_write(tmp_path, options, expected):
    project = Project(tmp_path, f'DATABASES["default"]["OPTIONS"] = {options!r}\n')
    output = project.manage("check", "--database", "default")
    assert set(re.findall(r"agora_agent\.(W01[56])", output)) == expected
    assert "W016" not in project.manage("check")


def test_the_register_in_the_docstring_is_the_table():
    told = set(re.findall(r"^([EWI]\d{3})  ", checks.__doc__ or "", re.MULTILINE))
    assert told == set(checks.RULES)
    assert all(hint for _level, _message, hint in checks.RULES.values())


def test_the_checks_are_registered_under_their_tag():
    with override_settings(**{**RIGHT, "ASGI_APPLICATION": None}):
        assert [message.id for message in run_checks(tags=["agora_agent"])] == ["agora_agent.W019"]
