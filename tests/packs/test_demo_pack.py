"""The demo pack: made by its program, each check 0 on the untouched workspace and 1 on the reference solution."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from core.packs import read_pack
from core.packs.lint import lint
from core.packs.tree import read_tree

FOLDER = Path(__file__).parents[2] / "demo_data" / "pack"
PROGRAM = FOLDER.parent / "make_pack.py"
PERSONA_END = "All file paths are relative to the workspace directory."
# One process checks all workspaces: a process for each would take a minute.
CHECK_ALL = """
import importlib.util, json, sys
from pathlib import Path
values = {}
for one in sorted(Path(sys.argv[1]).iterdir()):
    spec = importlib.util.spec_from_file_location(one.name, Path(sys.argv[2]) / one.name / "reward" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    values[one.name] = module.grade([], one)
print(json.dumps(values))
"""


@pytest.fixture(scope="module")
def pack():
    return read_pack(FOLDER)


def graded(folder: Path) -> dict[str, dict[str, float]]:
    """Values of every check on the workspaces in ``folder``, by task."""
    command = [sys.executable, "-B", "-I", "-S", "-c", CHECK_ALL, folder, FOLDER]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    values: dict[str, dict[str, float]] = json.loads(ran.stdout)
    return values


def workspaces(pack, folder: Path) -> Path:
    for task in pack.tasks:
        for path, one in task.input_files.items():
            at = folder / task.task_id / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(one.content)
    return folder


def test_it_is_what_its_program_makes(pack, tmp_path):
    subprocess.run([sys.executable, PROGRAM, "--out", tmp_path / "pack"], check=True, capture_output=True, timeout=60)
    assert read_tree(tmp_path / "pack") == read_tree(FOLDER)
    assert sum(len(one.content) for one in read_tree(FOLDER).values()) < 1 << 20


def test_untouched_workspaces_score_0(pack, tmp_path):
    values = graded(workspaces(pack, tmp_path))
    assert len(values) == len(pack.tasks) >= 40
    assert {name for name, each in values.items() if any(each.values())} == set()


def test_reference_solutions_score_1(pack, tmp_path):
    for folder in workspaces(pack, tmp_path).iterdir():
        subprocess.run(["bash", FOLDER / folder.name / "solution" / "solve.sh"], cwd=folder, check=True, timeout=20)
    values = graded(tmp_path)
    assert {name for name, each in values.items() if set(each.values()) != {1.0}} == set()


def test_a_wrong_answer_scores_between(pack, tmp_path):
    """One file of the solution is emptied: the checks that read it fail, and only they."""
    for folder in workspaces(pack, tmp_path).iterdir():
        subprocess.run(["bash", FOLDER / folder.name / "solution" / "solve.sh"], cwd=folder, check=True, timeout=20)
        task = pack.by_id[folder.name]
        first = sorted(path.removeprefix("files/") for path in task.solution_files if path.startswith("files/"))[0]
        (folder / first).unlink()
    for name, each in graded(tmp_path).items():
        checks = [value for key, value in each.items() if key != "reward"]
        assert 0 < sum(checks) < len(checks), name


def test_both_routes_splits_and_rubrics(pack):
    routes = Counter(task.tags[0] for task in pack.tasks)
    assert routes == {"persona": 24, "skill": 20}
    for task in pack.tasks:
        persona = task.query.endswith(PERSONA_END)
        assert persona == (task.tags[0] == "persona")
        program = task.checker_files["check.py"].text or ""
        assert ("GATED = True" in program) != persona
    assert Counter(task.split for task in pack.tasks) == {"train": 33, "val": 11}
    assert sum(bool(task.rules) for task in pack.tasks) == 16
    assert len({task.category for task in pack.tasks}) == 6


def test_the_lint_finds_no_error(pack):
    findings = [one for one in lint(pack) if one.level != "note"]
    assert findings == []
