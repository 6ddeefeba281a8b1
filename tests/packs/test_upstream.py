"""ClawGym's own 2,200 tasks: the statistics of its pages, the known findings, and its own converter on our rows.

The sources are found by ``CLAW_UPSTREAM``, a folder with the git directory ``ClawGym+ClawGym-Agents/repo``. They are
not part of this repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from core.packs import Pack, read_pack, write_pack
from core.packs.lint.imports import missing_imports
from core.packs.lint.run import findings_of, untouched
from core.packs.lint.sources import programs
from core.packs.lint.workspace import finds_itself
from core.packs.model import REWARD_SH

REPO = Path(os.environ.get("CLAW_UPSTREAM", "/nonexistent")) / "ClawGym+ClawGym-Agents" / "repo"
DATA = "RL/data"
needs_upstream = pytest.mark.skipif(
    not REPO.exists(), reason="ClawGym's tasks are not here, so they were not read: CLAW_UPSTREAM names their folder"
)
pytestmark = [needs_upstream, pytest.mark.beyond]

PERSONA_END = "All file paths are relative to the workspace directory."
# tasks; input files min, median, max; input bytes median, max; tasks of the persona route; checkers with subprocess
STATISTICS = {
    "clawgym_train": (2000, (0, 3, 19), (2456, 41932), 1121, 162),
    "clawgym_eval": (200, (1, 3, 12), (2119, 14179), 155, 19),
}
# Tasks whose untouched workspace scores above 0 only because the checker finds its own source there.
FIND_THEMSELVES = {
    "clawgym_train": {"task_0013", "task_0370", "task_0829", "task_1122", "task_1293"},
    "clawgym_eval": {"task_0185"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clawgym")
    archive = folder / "data.tar"
    with archive.open("wb") as stream:
        subprocess.run(["git", "-C", REPO, "archive", "HEAD", DATA], stdout=stream, check=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", folder], check=True)
    return folder / DATA


@pytest.fixture(scope="module", params=STATISTICS)
def pack(request, data):
    return read_pack(data / request.param)


def test_statistics(pack):
    n_tasks, files, sizes, n_persona, n_subprocess = STATISTICS[pack.name]
    n_files = [len(task.input_files) for task in pack.tasks]
    n_bytes = [task.n_input_bytes for task in pack.tasks]
    assert len(pack.tasks) == n_tasks
    assert (min(n_files), median(n_files), max(n_files)) == files
    assert (int(median(n_bytes)), max(n_bytes)) == sizes
    assert sum(task.query.rstrip().endswith(PERSONA_END) for task in pack.tasks) == n_persona
    assert sum(b"subprocess" in task.checker_files["check.py"].content for task in pack.tasks) == n_subprocess
    assert all(task.checker == REWARD_SH and task.category is None and not task.extra for task in pack.tasks)


def test_known_findings(pack):
    """Modules outside the standard library are imported inside ``try`` only, and the named checkers are reported."""
    own = {"tests", "src", "input", "scripts"}
    imports = {}
    reported = set()
    for task in pack.tasks:
        trees = programs(task)
        reported |= {task.task_id for _ in finds_itself(task, trees)}
        for finding in missing_imports(task, trees, lambda module: module in own):
            imports.setdefault(finding.message.split()[2].rstrip(","), []).append((task.task_id, finding.level))
    train = pack.name == "clawgym_train"
    assert len(imports["yaml"]) == (21 if train else 1)
    if train:
        assert imports["cryptography"] == [("task_0608", "warning")]
    assert {level for found in imports.values() for _, level in found} == {"warning"}
    assert reported >= FIND_THEMSELVES[pack.name]


def test_their_converter_makes_the_same_folders_of_our_rows(pack, data, tmp_path):
    """Hub rows that we write become, with ClawGym's own program, the files of the original task folders."""
    some = Pack(pack.name, pack.tasks[:40])
    write_pack(some, tmp_path / "rows.jsonl", "hub")
    program = data / "build_dataset_from_hf.py"
    command = [sys.executable, program, "--input", tmp_path / "rows.jsonl", "--output", tmp_path / "theirs"]
    subprocess.run(command, check=True, capture_output=True)
    for task in some.tasks:
        original, theirs = data / pack.name / task.task_id, tmp_path / "theirs" / task.task_id
        names = {path.relative_to(original) for path in original.rglob("*") if path.is_file()}
        assert {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()} == names
        for name in names:
            if name.name != "data_entry.json":
                assert (theirs / name).read_bytes() == (original / name).read_bytes(), (task.task_id, name)
    assert read_pack(tmp_path / "theirs").content_hash == some.content_hash


def test_written_and_read_again(pack, tmp_path):
    some = Pack(pack.name, pack.tasks[::10])
    for format, out in (("clawgym", "folder"), ("hub", "rows.jsonl"), ("harbor", "bench")):
        write_pack(some, tmp_path / out, format)
        assert read_pack(tmp_path / out).content_hash == some.content_hash


# Canonical score of the untouched workspace, and with the checker outside of it; bench/packs runs all tasks.
UNTOUCHED = {
    "task_0078": (0.0833, 0.0833),
    "task_0094": (0.1111, 0.1111),
    "task_0119": (0.0714, 0.0714),
    "task_0185": (0.1, 0.0),
    "task_0000": (0.0, 0.0),
}


def test_untouched_workspaces_that_score(data):
    tasks = read_pack(data / "clawgym_eval").by_id
    for task_id, (canonical, outside) in UNTOUCHED.items():
        result = untouched(tasks[task_id])
        assert (round(result.score.value, 4), round(result.outside.value, 4)) == (canonical, outside), task_id
        found = {finding.check for finding in findings_of(result)} & {"untouched_scores", "checker_finds_itself"}
        wanted = {"untouched_scores"} if canonical else set()
        assert found == wanted | ({"checker_finds_itself"} if canonical != outside else set())
