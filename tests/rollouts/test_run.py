"""Runs in real sandboxes through a real gateway: a supervisor killed in the middle, and wishes that are wrong."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core.rollouts import Attempt, Run
from core.rollouts.planning import Wish
from core.service import Service
from tests.conftest import eventually
from tests.processes import children

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
    ],
)
def test_wrong_wishes_are_refused_before_anything_starts(service: Service, pack: Path, wish: Wish, field: str) -> None:
    from core.errors import StudioError

    with pytest.raises(StudioError) as refused:
        service.rollouts.start(str(pack), wish)
    assert refused.value.field == field
    assert service.rollouts.runs.all() == []
