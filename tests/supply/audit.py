"""Ask pip-audit's databases about every pinned package: ``python tests/supply/audit.py PIP_AUDIT``.

A weakness that it knows of ends with 1. Where no database can be reached, or it knows none of the packages (a mirror
without its data), the program says so and ends with 0: ``test_packages.py`` holds the list in the repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"


def main(pip_audit: str) -> int:
    """Print what was asked and found; the exit code."""
    command = [pip_audit, "-r", str(LOCK), "--no-deps", "--disable-pip", "-f", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        print(f"no advisory database answered: {(done.stderr.strip().splitlines() or ['no reason'])[-1][:300]}")
        return 0
    audited = [one for one in packages if "skip_reason" not in one]
    print(f"{len(audited)} of {len(packages)} packages were known to the advisory database")
    weaknesses = [(one, weakness) for one in audited for weakness in one["vulns"]]
    for one, weakness in weaknesses:
        print(f"{one['name']} {one['version']}: {weakness['id']}, fixed in {', '.join(weakness['fix_versions'])}")
    return 1 if weaknesses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
