"""The wheel holds what it needs, and the README's five steps work with it in an empty project."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.shop.harness import free_port, read_until, text_of
from tests.test_readme import blocks, file_block

ROOT = Path(__file__).resolve().parents[2]
# The empty project knows nothing of the suite's settings.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON"))}

pytestmark = pytest.mark.processes


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**CLEAN, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    [built] = folder.glob("*.whl")
    return built


def test_wheel_holds_migrations_templates_static_files_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "agora_agent/py.typed" in names
    packaged = {path for path in names if path.startswith("agora_agent/")}
    listed = run("git", "ls-files", "agora_agent", cwd=ROOT).split()
    in_tree = {path for path in listed if (ROOT / path).exists()}
    assert in_tree - packaged == set()
    for needed in ("migrations/0001_initial.py", "durable/migrations/0001_initial.py"):
        assert f"agora_agent/{needed}" in packaged
    for folder in ("templates/", "static/"):
        assert any(path.startswith(f"agora_agent/{folder}") for path in packaged)
    assert not any(path.startswith(("tests/", "example_project/")) for path in names)


def test_five_readme_steps_lead_to_an_answering_agent(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    readme = (ROOT / "README.md").read_text()
    wanted = re.search(r'pip install "agora-agent(\[[a-z,]+\])"', readme)
    assert wanted is not None
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}{wanted[1]}", cwd=tmp_path)

    project = tmp_path / "site"
    project.mkdir()
    run(python, "-m", "django", "startproject", "project", ".", cwd=project)
    run(python, "manage.py", "startapp", "library", cwd=project)
    for name in ("settings.py", "urls.py", "asgi.py"):
        with (project / "project" / name).open("a") as file:
            file.write("\n\n" + file_block(name))
    with (project / "project/settings.py").open("a") as file:
        # The reader's own app, and a model that needs no key.
        file.write('\nINSTALLED_APPS += ["library"]\n')
        file.write('AGORA_AGENT["MODEL_PROVIDER"] = "agora_agent.providers.scripted.ScriptedModel"\n')
    (project / "library/agents.py").write_text(file_block("agents.py"))

    said = run(python, "manage.py", "check", "--fail-level", "WARNING", cwd=project)
    assert "0 silenced" in said
    run(python, "manage.py", "migrate", cwd=project)
    run(python, "manage.py", "makemigrations", "--check", "--dry-run", cwd=project)
    [people] = [block for block in blocks("") if block.startswith("python manage.py shell")]
    script = re.search(r'-c "\n(.*)"', people, re.DOTALL)
    assert script is not None
    run(python, "manage.py", "shell", "-c", script[1], cwd=project)
    answer_of_a_server(python, project)


def answer_of_a_server(python: Path, project: Path) -> None:
    """Start the server as the README does, send its message, read the answer."""
    port = free_port()
    server = subprocess.Popen(
        [python, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        cwd=project,
        env=CLEAN,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/agent/chat",
            data=json.dumps({"message": "hello", "agent": "desk"}).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(b"ann:secret").decode(),
                "Content-Type": "application/json",
                "Accept": "text/event-stream",
            },
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    frames = read_until(response, ("done", "error"))
                break
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > deadline:
                    raise
            assert server.poll() is None, server.stderr and server.stderr.read()
            time.sleep(0.1)
        assert frames[-1].event == "done"
        assert "offline demo model" in text_of(frames)
        for static in ("admin/css/base.css", "agora_agent/admin/agora.css"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/static/{static}", timeout=60) as response:
                assert response.status == 200
    finally:
        server.terminate()
        server.wait(30)
        if server.stderr:
            server.stderr.close()
