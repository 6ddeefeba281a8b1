"""The attempts log: what a killed writer leaves is read as far as it is whole, and nothing is lost or doubled."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import AlreadyOwned, Conflict, InvalidInput, NotFound
from core.rollouts import Attempt, Run, RunSettings, RunStore
from core.rollouts.attempt import uid_part
from core.rollouts.log import LOG
from core.rollouts.progress import progress
from core.types import is_uid

SETTINGS = RunSettings(
    run="run-1",
    pack="pack",
    pack_version="0" * 12,
    pack_path="/packs/one",
    task_ids=("a", "b/c ü"),
    harness="demo",
    model="m",
    attempts=2,
    workers=3,
    created_at=1.0,
    command=("x", "{prompt}"),
)


def attempt(task: str = "a", number: int = 0, retry: int = 0, **fields: Any) -> Attempt:
    uid = f"run-1:{task}:{number}:{retry}"
    return replace(Attempt("run-1", "pack", "0" * 12, task, "demo", number, retry, uid, started_at=10.0), **fields)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return RunStore(tmp_path / "rollouts").create(SETTINGS)


def test_uids_of_any_task_can_be_called_with_and_differ() -> None:
    ids = ["a", "a b", "a_b", "a\u3000b", "a  b", "a%20b", "b/c ü", "x" * 120, "x" * 121, "x" * 200, "y " * 99]
    parts = [uid_part(one) for one in ids]
    assert len(set(parts)) == len(ids) and all(is_uid(f"{'r' * 100}:{one}:1023:99") for one in parts)
    assert [one for one, part in zip(ids, parts, strict=True) if one == part] == ["a", "a_b", "a%20b", "x" * 120]


def test_a_run_is_found_again(run: Run, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "rollouts")
    assert store.get("run-1").settings == SETTINGS
    assert [one.settings.run for one in store.all()] == ["run-1"]
    with pytest.raises(Conflict):
        store.create(SETTINGS)
    for name in ("run-2", "../rollouts", "", "."):
        with pytest.raises(NotFound):
            store.get(name)


@pytest.mark.parametrize("change", [{"run": "../x"}, {"attempts": 0}, {"workers": 0}, {"time_s": -1}, {"task_ids": ()}])
def test_wrong_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        replace(SETTINGS, **change)
    assert refused.value.field and refused.value.hint


def test_the_newest_state_of_each_attempt_counts(run: Run) -> None:
    states = [
        attempt(),
        attempt("b/c ü"),
        attempt(state="verifying", workspace="d" * 64),
        attempt(state="done", outcome="solved", score=1.0, details={"values": {"x": 1}}, ended_at=12.0),
        attempt("b/c ü", state="done", outcome="lost"),
        attempt("b/c ü", retry=1),
    ]
    with run.writer() as writer:
        for state in states:
            writer.write(state)
            assert state in run.attempts()
    assert run.attempts() == [states[3], states[4], states[5]]
    assert run.newest() == {("a", 0): states[3], ("b/c ü", 0): states[5]}
    assert RunStore(run.folder.parent).get("run-1").attempts() == run.attempts()
    assert states[3].prompt_uid == "a@demo"
    assert RunStore(run.folder.parent).find("run-1:a:0:0") == (run, states[3])


def test_every_torn_tail_is_ignored_and_cut(run: Run) -> None:
    whole = [attempt(number=0), attempt(number=1, reason="a\nb")]
    with run.writer() as writer:
        for one in whole:
            writer.write(one)
    path = run.folder / LOG
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for n in range(first, len(content)):
        path.write_bytes(content[:n])
        fresh = RunStore(run.folder.parent).get("run-1")
        assert fresh.attempts() == whole[:1]
        with fresh.writer() as writer:
            writer.write(whole[1])
        assert fresh.attempts() == whole
        assert path.read_bytes() == content
        assert fresh.reader.n_damaged == 0


def test_a_damaged_line_costs_that_line(run: Run) -> None:
    with run.writer() as writer:
        for number in range(3):
            writer.write(attempt(number=number))
    path = run.folder / LOG
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"a"', b'"b"') + lines[2])
    fresh = RunStore(run.folder.parent).get("run-1")
    assert [one.number for one in fresh.attempts()] == [0, 2]
    assert fresh.reader.n_damaged == 1


def test_one_process_works_on_a_run(run: Run) -> None:
    def held() -> bool:
        return run.in_progress

    assert not held()
    with run.writer():
        assert held()
        with pytest.raises(AlreadyOwned):
            run.writer()
        program = "import sys; from pathlib import Path; from core.rollouts import RunStore; "
        program += "print(RunStore(Path(sys.argv[1])).get('run-1').in_progress)"
        other = subprocess.run(
            [sys.executable, "-c", program, str(run.folder.parent)], capture_output=True, text=True, check=True
        )
        assert other.stdout.strip() == "True"
    assert not held()


def test_logs_of_attempts_do_not_meet(run: Run) -> None:
    attempts = [attempt("a/b"), attempt("a-b"), attempt("a b", 1), attempt("a b", 1, 2), attempt("../x" * 40)]
    for number, one in enumerate(attempts):
        stored = replace(one, log=run.write_log(one, b"%d" % number))
        assert (run.folder / str(stored.log)).parent == run.folder / "logs"
        attempts[number] = stored
    assert [run.read_log(one) for one in attempts] == [b"0", b"1", b"2", b"3", b"4"]
    assert run.read_log(attempt()) is None


def test_progress_counts_each_slot_once(run: Run) -> None:
    with run.writer() as writer:
        writer.write(attempt(state="done", outcome="solved", score=1.0, ended_at=14.0))
        writer.write(attempt(number=1, state="done", outcome="lost", ended_at=11.0))
        writer.write(attempt("b/c ü", state="done", outcome="crashed", reason="why", ended_at=12.0))
        writer.write(attempt("b/c ü", number=1))
        now = progress(run)
        assert (now.n_slots, now.n_waiting, now.n_running, now.n_done) == (4, 1, 1, 2)
        assert now.outcomes == {"solved": 1, "crashed": 1, "lost": 1}
        assert (now.n_scored, now.mean_score, now.mean_s) == (1, 1.0, 3.0)
        # One runs while one waits: the run was resumed with one worker, and half of an attempt and one more are left.
        assert now.eta_s == pytest.approx(1.5 * 3.0)
        assert now.state == "running"
        writer.write(attempt(number=1, retry=1, state="done", outcome="failed", score=0.0, ended_at=13.0))
    now = progress(run)
    assert (now.state, now.n_waiting, now.n_done, now.n_retries, now.mean_score) == ("stopped", 1, 3, 1, 0.5)
