from __future__ import annotations

import pytest
from django.test import override_settings

from agora_agent import conf
from agora_agent.conf import AgoraAgentSettings, Settings, agent_durable, agora_settings, instance, resolve
from agora_agent.exceptions import ConfigurationError


class Resolver:
    """Something that a setting can name."""


def test_a_setting_that_is_not_given_has_its_default():
    with override_settings(AGORA_AGENT={}):
        assert agora_settings.MAX_STEPS == 8
        assert agora_settings.DURABLE is False


def test_a_setting_is_read_at_each_access():
    with override_settings(AGORA_AGENT={"MAX_STEPS": 3}):
        assert agora_settings.MAX_STEPS == 3
        with override_settings(AGORA_AGENT={"MAX_STEPS": 4}):
            assert agora_settings.MAX_STEPS == 4
        assert agora_settings.MAX_STEPS == 3


def test_a_name_that_is_no_setting_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = agora_settings.NO_SUCH  # type: ignore[attr-defined]


def test_defaults_are_right_by_their_own_rules():
    values = {name: getattr(Settings, name) for name in vars(Settings) if name.isupper()}
    with override_settings(AGORA_AGENT=values):
        assert list(conf.problems()) == []


def test_the_published_type_lists_every_setting():
    assert set(AgoraAgentSettings.__annotations__) == {name for name in vars(Settings) if name.isupper()}


@pytest.mark.parametrize(
    "value",
    [
        {"DURABLE": True},
        {"DURABLE": "required"},
        {"LEASE_SECONDS": 3},
        {"OPENAI_API_KEY": None},
        {"MODEL_PROVIDER": Resolver},
    ],
)
def test_values_of_the_right_type_are_no_problem(value):
    with override_settings(AGORA_AGENT=value):
        assert list(conf.problems()) == []


@pytest.mark.parametrize(
    "value",
    [
        {"DURABLE": 1},
        {"MAX_STEPS": 1.5},
        {"MAX_STEPS": True},
        {"MODEL": None},
        {"SWEEP_SECONDS": 0},
        {"MAX_STEPS": -1},
    ],
)
def test_values_of_another_type_are_problems(value):
    with override_settings(AGORA_AGENT=value):
        [(kind, message, hint)] = conf.problems()
    assert kind == "type"
    assert next(iter(value)) in message
    assert hint


def test_a_dotted_path_is_resolved_once_and_anew_after_a_change():
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": f"{__name__}.Resolver"}):
        assert resolve("ACTOR_RESOLVER") is Resolver
        first = instance("ACTOR_RESOLVER")
        assert instance("ACTOR_RESOLVER") is first
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": f"{__name__}.Resolver"}):
        assert instance("ACTOR_RESOLVER") is not first


def test_a_class_is_as_good_as_its_path():
    with override_settings(AGORA_AGENT={"ACTOR_RESOLVER": Resolver}):
        assert isinstance(instance("ACTOR_RESOLVER"), Resolver)


def test_a_path_that_leads_nowhere_names_the_setting():
    wrong = override_settings(AGORA_AGENT={"TOOL_POLICY": "no.where.Policy"})
    with wrong, pytest.raises(ConfigurationError, match="TOOL_POLICY"):
        resolve("TOOL_POLICY")


def test_settings_that_are_no_dict_are_refused_at_access():
    with override_settings(AGORA_AGENT="DURABLE"), pytest.raises(ConfigurationError, match="must be a dict"):
        _ = agora_settings.MAX_STEPS


def test_durable_in_one_line():
    assert agent_durable() == {"DURABLE": True}
    assert agent_durable(MODEL="m") == {"DURABLE": True, "MODEL": "m"}
    assert agent_durable(DURABLE="required") == {"DURABLE": "required"}
    with override_settings(AGORA_AGENT=agent_durable(MAX_STEPS=2)):
        assert list(conf.problems()) == []
        assert (agora_settings.DURABLE, agora_settings.MAX_STEPS) == (True, 2)
