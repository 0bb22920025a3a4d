"""The pytest plugin in somebody else's project."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(code))
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-W",
        "error",
    ]
    try:
        from importlib.metadata import entry_points

        installed = any(
            point.value == "agora_agent.testing.plugin" for point in entry_points(group="pytest11")
        )
    except ImportError:
        installed = False
    plugin = [] if installed else ["-p", "agora_agent.testing.plugin"]
    return subprocess.run(
        [*command, *plugin], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.processes
def test_plugin_loads_without_django_settings_and_serves(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        """
        import sys

        def test_no_django_app_is_loaded():
            assert "agora_agent.models" not in sys.modules

        def test_model(scripted_model):
            from agora_agent.testing import Reply
            assert scripted_model(lambda request: Reply("hi")).reply(None).text == "hi"

        def test_server(fake_openai):
            import httpx
            from agora_agent.testing.turns import text, finish
            fake_openai.turn(text("hi"), finish())
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            assert httpx.post(f"{fake_openai.base_url}/chat/completions", json=body).status_code == 200
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_refused_prompt_fails_the_test(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        """
        def test_server(fake_openai):
            import httpx
            httpx.post(f"{fake_openai.base_url}/chat/completions", json={"model": "m", "messages": []})
        """,
    )
    assert done.returncode == 1
    assert "the model server refused" in done.stdout


def test_function_is_not_hidden_by_the_module_of_its_name() -> None:
    import agora_agent.testing

    drain = pytest.importorskip("agora_agent.testing.drain")
    assert agora_agent.testing.drain is drain.drain
