"""``make test`` and ``make beyond`` together are all tests, and ``.ci/run`` runs both."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def options_of(target: str) -> list[str]:
    """What ``make`` would give pytest for ``target``."""
    command = ["make", "--dry-run", "--old-file=.venv/.test", "--silent", target, "WORKERS=2", "ARGS="]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in ran.stdout.splitlines() if "-m pytest" in line]
    return shlex.split(line.partition("-m pytest")[2])


def test_what_one_leaves_out_the_other_runs() -> None:
    """They differ in one expression and its contrary, and neither names folders or leaves any out."""
    shared = ["-n", "2", "--dist", "loadfile"]
    assert options_of("test") == ["-m", "not beyond", *shared]
    assert options_of("beyond") == ["-m", "beyond", *shared]
    pytest_options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert pytest_options["testpaths"] == ["tests"]
    assert not {"python_files", "python_functions", "norecursedirs"} & set(pytest_options)
    assert not re.search(r"(^| )(-m|-k|--ignore|--deselect)", pytest_options["addopts"])


def test_ci_runs_both() -> None:
    steps = (ROOT / ".ci" / "run").read_text().splitlines()
    assert steps.index("export CI=true") < steps.index("run_tests test") < steps.index("run_tests beyond")
    assert '  make "$target" && return' in steps
