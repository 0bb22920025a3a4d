"""CI's last word: it counts what ran, and does not let a missing service pass as a skip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUMMARY = Path(__file__).resolve().parents[2] / ".ci/summary.py"
PASSED = '<testcase classname="t" name="a"/>'
FAILED = '<testcase classname="t" name="b"><failure message="no"/></testcase>'
OTHER_DATABASE = '<testcase classname="t" name="c"><skipped message="tests PostgreSQL itself"/></testcase>'
NO_SERVICE = '<testcase classname="t" name="d"><skipped message="needs a service: Redis"/></testcase>'


@pytest.mark.parametrize(
    ("cases", "last_line", "status"),
    [
        ([PASSED, PASSED], "2 passed, 0 failed, 0 skipped", 0),
        ([PASSED, OTHER_DATABASE], "1 passed, 0 failed, 1 skipped", 0),
        ([PASSED, FAILED], "1 passed, 1 failed, 0 skipped", 1),
        ([PASSED, NO_SERVICE], "1 passed, 1 failed, 1 skipped", 1),
        ([], "0 passed, 1 failed, 0 skipped", 1),
    ],
    ids=["all pass", "another database", "a failure", "a missing service", "nothing ran"],
)
def test_summary_of_one_report(tmp_path: Path, cases: list[str], last_line: str, status: int) -> None:
    report = tmp_path / "SQLite.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    done = summary(report)
    assert (done.stdout.splitlines()[-1], done.returncode) == (last_line, status)


def test_a_report_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    done = summary(tmp_path / "MariaDB.xml")
    assert done.returncode == 1
    assert "MariaDB: no report" in done.stderr


def summary(*reports: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SUMMARY), *map(str, reports)], capture_output=True, text=True, check=False
    )
