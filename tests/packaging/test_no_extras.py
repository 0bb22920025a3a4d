"""The core does not need its extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.processes
def test_core_checks_migrates_and_runs_a_turn_without_extras() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::DeprecationWarning:agora_agent",
            str(root / "tests/packaging/bare.py"),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
