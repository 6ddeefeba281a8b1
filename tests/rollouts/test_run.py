"""Runs in real sandboxes through a real gateway: 64 attempts at once, and a supervisor that is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.harnesses.demo import MAX_TURNS
from core.rollouts import Attempt, Run
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from core.serving.process import EngineProcess
from tests.conftest import eventually
from tests.left_out import only_in_ci
from tests.processes import children

from .demo_pack import bare_attempt
from .training_files import check_grpo_plan, check_sft_file

pytestmark = pytest.mark.timeout(900)
RUN_S = 600.0


def finished(service: Service, run: Run) -> list[Attempt]:
    """The attempts after the run's end."""
    eventually(lambda: service.rollouts.status(run)["progress"]["state"] != "running", timeout_s=RUN_S)
    status = service.rollouts.status(run)
    assert (status["error"], status["progress"]["state"]) == (None, "finished")
    return run.attempts()


def trajectories(service: Service) -> dict[str, dict[str, Any]]:
    assert service.ingest.catch_up(60)
    return {uid: service.pool.trajectories.get(uid) for uid in service.pool.trajectories.uids()}


@only_in_ci("64 attempts in sandboxes")
def test_eight_by_eight(service: Service, engine: EngineProcess, pack: Path) -> None:
    """Scores are those of the same agent without sandbox and studio, and every step belongs to its attempt."""
    run = service.rollouts.start(str(pack), Wish(attempts=8, workers=8))
    attempts = finished(service, run)
    slots = {one.slot: one for one in attempts}
    assert len(attempts) == len(slots) == 64
    with ThreadPoolExecutor(4) as threads:
        jobs = {
            slot: threads.submit(bare_attempt, str(engine.base_url), pack / slot[0], slot[1], MAX_TURNS)
            for slot in slots
        }
    expected = {slot: job.result() for slot, job in jobs.items()}
    assert {slot: one.score for slot, one in slots.items()} == expected
    assert {one.outcome for one in attempts} == {"solved", "failed"}
    assert all((one.outcome == "solved") == (expected[one.slot] > 0.5) for one in attempts)
    assert {(one.isolation or {})["level"] for one in attempts} == {choose().isolation.level}

    made = trajectories(service)
    assert set(made) == {one.trajectory_uid for one in attempts}
    for one in attempts:
        trajectory = made[one.trajectory_uid]
        assert trajectory["complete"] and trajectory["reward"] == one.score and trajectory["outcome"] == one.outcome
        assert trajectory["prompt_uid"] == f"{one.task_id}@demo"
        assert 2 <= len(trajectory["steps"]) <= MAX_TURNS
        for step in trajectory["steps"]:
            about: dict[str, Any] = {
                "run": one.run,
                "pack": pack.name,
                "pack_version": one.pack_version,
                "task": one.task_id,
            }
            about |= {"attempt": one.number, "harness": "demo", "isolation": (one.isolation or {})["level"]}
            assert about.items() <= step["metadata"].items()
            assert step["identity_source"] == "key"
    # The workspace that was scored is the one that is stored.
    for one in attempts[::9]:
        changed = {change.path for change in service.rollouts.workspaces.changes(str(one.workspace))}
        assert bool(changed) >= (one.outcome == "solved")
        assert one.cpu_s is not None and one.wall_s is not None and run.read_log(one)
    # Session keys end with their attempt.
    assert all(row["revoked_at"] is not None for row in service.pool.journal.sessions())
    check_grpo_plan(service, attempts)
    check_sft_file(service, attempts)


def test_a_killed_supervisor_loses_and_doubles_nothing(service: Service, pack: Path) -> None:
    run = service.rollouts.start(str(pack), Wish(attempts=4, workers=6))
    eventually(lambda: sum(one.state == "done" for one in run.attempts()) >= 8, timeout_s=RUN_S)
    (supervisor,) = [pid for pid in children(os.getpid()) if b"core.rollouts.worker" in cmdline(pid)]
    agents = children(supervisor)
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: service.rollouts.status(run)["progress"]["state"] == "stopped")
    eventually(lambda: not any(b"bwrap" in cmdline(pid) for pid in agents))
    before = {(*one.slot, one.retry): one for one in run.attempts()}
    half_way = [one for one in before.values() if one.state != "done"]
    assert half_way

    service.rollouts.resume(run.settings.run)
    attempts = {(*one.slot, one.retry): one for one in finished(service, run)}
    assert all(attempts[key] == one for key, one in before.items() if one.state == "done")
    newest = run.newest()
    assert len(newest) == 32 and all(one.outcome in {"solved", "failed"} for one in newest.values())
    lost = [one for one in attempts.values() if one.outcome == "lost"]
    assert {one.slot for one in lost} <= {one.slot for one in half_way}
    assert Counter(one.slot for one in attempts.values() if one.outcome != "lost") == dict.fromkeys(newest, 1)
    assert len({one.trajectory_uid for one in attempts.values()}) == len(attempts)

    made = trajectories(service)
    scored = {uid for uid, one in made.items() if one["reward"] is not None}
    assert scored == {one.trajectory_uid for one in newest.values()}
    for one in lost:
        if one.trajectory_uid in made:
            assert made[one.trajectory_uid]["complete"] and made[one.trajectory_uid]["outcome"] == "lost"
    service.rollouts.cancel(run.settings.run)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (Wish(agent="nobody"), "agent"),
        (Wish(tasks=["no-such-task"]), "tasks"),
        (Wish(split="val"), "split"),
        (Wish(agent="command"), "command"),
        (Wish(agent="command", command=["true"]), "command"),
        (Wish(attempts=0), "attempts"),
        (Wish(channel="my runs"), "channel"),
    ],
)
def test_wrong_wishes_are_refused_before_anything_starts(service: Service, pack: Path, wish: Wish, field: str) -> None:
    from core.errors import StudioError

    with pytest.raises(StudioError) as refused:
        service.rollouts.start(str(pack), wish)
    assert refused.value.field == field
    assert service.rollouts.runs.all() == []
