"""Add up the suite's reports; fail if one is missing or empty, or if a test was skipped for want of a service."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# What tests/conftest.py says when a service that a test needs is not there.
MISSING_SERVICE = "needs a service"


def main(paths: list[str]) -> int:
    """Print one line for each complaint, then the sum."""
    passed = failed = skipped = 0
    complaints: list[str] = []
    for path in map(Path, paths):
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            complaints.append(f"{path.stem}: no report ({error})")
            continue
        cases = list(root.iter("testcase"))
        if not cases:
            complaints.append(f"{path.stem}: no test ran")
        for case in cases:
            name = f"{path.stem}: {case.get('classname')}::{case.get('name')}"
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif skip is None:
                passed += 1
            else:
                skipped += 1
                reason = f"{skip.get('message') or ''} {skip.text or ''}"
                if MISSING_SERVICE in reason:
                    complaints.append(f"{name} was skipped: {skip.get('message')}")
    for complaint in complaints:
        print(f"ci: {complaint}", file=sys.stderr)
    print(f"{passed} passed, {failed + len(complaints)} failed, {skipped} skipped", flush=True)
    return 1 if failed or complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
