"""The trash empties itself by the clock, and a read-only folder is told by name.

The kernel is the reference for the folders: real read-only mounts, in a namespace of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core import trash
from core.config import Settings
from core.pool.upkeep.retention import Retention
from core.pool.upkeep.trashedruns import RUN_FILE, uptime
from core.service import Service
from core.trash import TrashSweep
from tests.conftest import eventually

from .folder import DAY, Folder

OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
UNDER_WAY = "run-" + "0" * 32


@pytest.fixture
def deleted(tmp_path: Path) -> tuple[Settings, str, float]:
    """A closed data folder whose trash holds one run; its settings, the run, and when it was."""
    folder = Folder(tmp_path / "data")
    folder.send("d1")
    folder.catch_up()
    folder.now += 30 * DAY
    run = folder.pool.retention.apply(Retention(older_than_days=5), author="ann")["run_uid"]
    folder.close()
    return folder.settings.model_copy(update={"port": 0, "engine": "http://127.0.0.1:9/v1"}), run, folder.now


def test_the_trash_is_swept_at_a_start_and_while_the_studio_runs(
    deleted: tuple[Settings, str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "SWEEP_EVERY_S", 0.0)
    monkeypatch.setattr(trash, "SETTLED_S", 0.0)
    settings, run, at = deleted
    of_an_earlier_start(settings, run)
    now = [at + DAY - 60]
    (settings.trash_dir / UNDER_WAY / "rows").mkdir(parents=True)
    service = Service.open(settings, clock=lambda: now[0])
    try:
        assert {path.name for path in settings.trash_dir.iterdir()} == {run}
        assert [one["run_uid"] for one in service.trash()] == [run]
        (settings.trash_dir / UNDER_WAY / "rows").mkdir(parents=True)
        now[0] = at + DAY + 1
        eventually(lambda: not (settings.trash_dir / run).exists())
        # Without a note it may be a run that deletes right now.
        assert (settings.trash_dir / UNDER_WAY).exists()
    finally:
        service.close()


def of_an_earlier_start(settings: Settings, run: str) -> None:
    """As if the machine had been started anew since the run."""
    note = settings.trash_dir / run / RUN_FILE
    note.write_text(json.dumps({**json.loads(note.read_bytes()), "up": ["an earlier start", 5.0]}))


def test_a_start_sweeps_what_was_over_meanwhile(deleted: tuple[Settings, str, float]) -> None:
    settings, _, at = deleted
    boot, up = uptime()
    TrashSweep(settings.trash_dir, days=1, clock=lambda: at + 2 * DAY, up=lambda: (boot, up + 2 * DAY))
    assert list(settings.trash_dir.iterdir()) == []


@pytest.mark.parametrize("days", [-365.0, -1.0, 1.0, 365.0])
def test_a_clock_that_jumps_empties_no_trash(deleted: tuple[Settings, str, float], days: float) -> None:
    """The reference is the kernel's uptime: nobody can set it, and no day has passed by it."""
    settings, run, at = deleted
    service = Service.open(settings, clock=lambda: at + days * DAY + 60)
    try:
        assert [one["run_uid"] for one in service.trash()] == [run]
        sweep = TrashSweep(settings.trash_dir, days=1, clock=lambda: at + days * DAY + 60)
        sweep()
        assert [one["run_uid"] for one in service.trash()] == [run]
    finally:
        service.close()


def test_after_a_start_of_the_machine_the_sweep_waits_for_its_clock_to_settle(
    deleted: tuple[Settings, str, float],
) -> None:
    settings, run, at = deleted

    def swept(up_s: float, days: float) -> bool:
        TrashSweep(settings.trash_dir, days=1, clock=lambda: at + days * DAY, up=lambda: ("the next start", up_s))
        return not (settings.trash_dir / run).exists()

    assert not swept(30.0, 400.0)
    assert not swept(trash.SETTLED_S, 0.99)
    assert swept(trash.SETTLED_S, 1.0)


def test_a_day_has_to_pass_by_both_clocks(deleted: tuple[Settings, str, float]) -> None:
    settings, run, at = deleted
    boot, up = json.loads((settings.trash_dir / run / RUN_FILE).read_bytes())["up"]

    def swept(days: float, up_days: float) -> bool:
        TrashSweep(settings.trash_dir, days=1, clock=lambda: at + days * DAY, up=lambda: (boot, up + up_days * DAY))
        return not (settings.trash_dir / run).exists()

    assert not swept(0.9, 2.0)
    assert not swept(2.0, 0.9)
    assert swept(1.0, 1.0)


def started(data: Path, *read_only: Path, mode: str = "serve") -> subprocess.CompletedProcess[str]:
    """``claw-studio`` where these folders are mounted read-only."""
    mounts = "".join(f"mount --bind {path} {path} && mount -o remount,bind,ro {path} && " for path in read_only)
    command = [sys.executable, "-m", "core.cli", mode, "--data", str(data)]
    extra = ["--port", "0", "--engine", "http://127.0.0.1:9/v1"] if mode == "serve" else []
    script = f"{mounts} exec " + " ".join([*command, *extra])
    return subprocess.run([*OWN_MOUNTS, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("part", [".", "journal", "opinions"])
def test_a_read_only_folder_is_told_by_name_with_its_mend(deleted: Any, part: str) -> None:
    if subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no namespaces of mounts")
    settings, _, _ = deleted
    data = settings.data_dir
    process = started(data, (data / part).resolve())
    assert process.returncode == 2, process
    assert "Traceback" not in process.stderr
    assert (str((data / part).resolve()) in process.stderr and "data_dir" in process.stderr) or part != ".", (
        process.stderr
    )
    assert "ead-only" in process.stderr and "writable" in process.stderr.lower(), process.stderr
    assert process.stdout == ""
