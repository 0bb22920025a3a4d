"""What the README and the docs say is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from agora_agent import checks
from agora_agent.agents import registry
from agora_agent.conf import Settings

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of one language, without their indentation."""
    return [
        re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        for match in BLOCK.finditer(README)
        if match["language"] == language
    ]


def file_block(name: str) -> str:
    """The one block that says it belongs into this file."""
    [block] = [block for block in blocks("python") if block.startswith(f"# {name}\n")]
    return block


def test_the_agent_takes_twenty_lines_and_works() -> None:
    code = file_block("agents.py")
    lines = [line for line in code.splitlines()[1:] if line.strip()]
    assert len(lines) <= 20
    with registry.isolated():
        registry.clear()
        namespace: dict[str, Any] = {"__name__": "library.agents"}
        exec(compile(code, "README.md", "exec"), namespace)
        agent = registry.get_agent("desk")
        assert agent is not None
        hours, fine = agent.tools
        assert hours.schema["properties"]["day"]["description"] == "the day of the week, in English."
        assert hours.validate({"day": "Sunday"}) == {"day": "Sunday"}
        assert (fine.tier, fine.approver) == ("authorise", "group:librarians")


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z]+)\b", README, re.MULTILINE))
    assert {"demo", "tour", "test", "lint"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)", text) if not t.startswith("http")]
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


def test_settings_reference_lists_every_setting_with_its_default() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| [^|]+ \| `([^`]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE
    )
    documented = {name: default.strip('"') for name, default in rows}
    assert documented == {name: str(getattr(Settings, name)) for name in vars(Settings) if name.isupper()}


def test_checks_reference_lists_every_check() -> None:
    documented = re.findall(
        r"^\| `agora_agent\.([EWI]\d+)` \|", (ROOT / "docs/checks.md").read_text(), re.MULTILINE
    )
    assert documented == list(checks.RULES)


@pytest.mark.django_db
def test_permissions_reference_lists_every_permission() -> None:
    text = (ROOT / "docs/permissions.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    known = Permission.objects.filter(content_type__app_label="agora_agent")
    own = {
        name
        for name in known.values_list("codename", flat=True)
        if not re.match(r"(add|change|delete|view)_(?!all_runs|run_payload)", name)
    }
    assert documented == own
    assert get_user_model().objects.count() == 0


def test_changelog_has_an_entry_for_what_is_coming() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
