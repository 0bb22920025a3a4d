from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.support.project import Project

LABELS = ("agora_agent", "agora_durable")

PEOPLE = """
INSTALLED_APPS.insert(0, "people")
AUTH_USER_MODEL = "people.Person"
"""
PEOPLE_FILES = {
    "people/__init__.py": "",
    "people/models.py": """
import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models


class Person(AbstractUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
""",
    "people/migrations/__init__.py": "",
}
SECOND_DATABASE = """
DATABASES["agents"] = {**DATABASES["default"], "NAME": BASE / "agents.sqlite3"}
DATABASE_ROUTERS = ["routers.Agents"]
"""
ROUTER = {
    "routers.py": """
LABELS = {"agora_agent", "agora_durable"}


class Agents:
    def db_for_read(self, model, **hints):
        return "agents" if model._meta.app_label in LABELS else None

    db_for_write = db_for_read

    def allow_relation(self, one, other, **hints):
        return True

    def allow_migrate(self, db, app_label, **hints):
        return (db == "agents") == (app_label in LABELS)
"""
}

PROJECTS = {
    "plain": ("", {}),
    "user with a UUID": (PEOPLE, PEOPLE_FILES),
    "AutoField": ('DEFAULT_AUTO_FIELD = "django.db.models.AutoField"\n', {}),
    "SmallAutoField": ('DEFAULT_AUTO_FIELD = "django.db.models.SmallAutoField"\n', {}),
    "own auto field": (
        'DEFAULT_AUTO_FIELD = "fields.OwnAutoField"\n',
        {
            "fields.py": "from django.db import models\n\n\nclass OwnAutoField(models.BigAutoField):\n    pass\n"
        },
    ),
    "without time zones": ("USE_TZ = False\n", {}),
    "another language": ('LANGUAGE_CODE = "de"\nUSE_I18N = True\n', {}),
    "without the engine": ('INSTALLED_APPS.remove("agora_agent.durable")\n', {}),
    "with the admin": (
        'INSTALLED_APPS += ["django.contrib.sessions", "django.contrib.messages", "django.contrib.admin"]\n',
        {},
    ),
    "a database of its own": (SECOND_DATABASE, ROUTER),
}


@pytest.mark.parametrize("name", PROJECTS)
def test_no_project_has_to_make_migrations_for_the_app(tmp_path, name):
    settings, files = PROJECTS[name]
    project = Project(tmp_path, settings, files)
    labels = [label for label in LABELS if "engine" not in name or label == "agora_agent"]
    output = project.manage("makemigrations", *labels, "--check", "--dry-run", "--skip-checks")
    assert "No changes detected" in output


def test_a_custom_user_is_migrated_to(tmp_path):
    project = Project(tmp_path, PEOPLE, PEOPLE_FILES)
    project.manage("makemigrations", "people")
    project.manage("migrate", "--verbosity", "0")
    sql = project.manage("sqlmigrate", "agora_agent", "0001")
    assert 'REFERENCES "people_person"' in sql
    assert "auth_user" not in sql


def test_all_tables_follow_the_router(tmp_path):
    project = Project(tmp_path, SECOND_DATABASE, ROUTER)
    for alias in ("default", "agents"):
        project.manage("migrate", "--verbosity", "0", "--database", alias)
    look = "from django.db import connections; print(sorted(connections['{}'].introspection.table_names()))"
    default = project.manage("shell", "--no-imports", "--command", look.format("default"))
    agents = project.manage("shell", "--no-imports", "--command", look.format("agents"))
    assert "agora_" not in default
    assert "agora_agent_agentrun" in agents
    assert "agora_journal" in agents
    assert "auth_user" not in agents


def test_without_time_zones_rows_are_written_and_read(tmp_path):
    project = Project(tmp_path, "USE_TZ = False\n")
    project.manage("migrate", "--verbosity", "0")
    write = (
        "from agora_agent.models import Thread; t = Thread.objects.create(); t.refresh_from_db(); "
        "print(t.created_at.tzinfo, t.created_at.year > 2000)"
    )
    assert "None True" in project.manage("shell", "--no-imports", "--command", write)


def _tables():
    with connection.cursor() as cursor:
        return set(connection.introspection.table_names(cursor))


def _own_tables():
    return {model._meta.db_table for label in LABELS for model in apps.get_app_config(label).get_models()}


@pytest.mark.django_db(transaction=True)
def test_down_to_nothing_and_back():
    own = _own_tables()
    assert own <= _tables()
    try:
        for label in LABELS[::-1]:
            call_command("migrate", label, "zero", verbosity=0)
        assert not own & _tables()
    finally:
        call_command("migrate", verbosity=0)
    assert own <= _tables()
    executor = MigrationExecutor(connection)
    assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []


@pytest.mark.parametrize("label", LABELS)
def test_names_fit_every_database(label):
    for model in apps.get_app_config(label).get_models():
        for named in (*model._meta.indexes, *model._meta.constraints):
            assert len(named.name) <= 30, named.name
