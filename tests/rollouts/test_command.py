"""``claw-studio rollout`` as a process: progress, kill -9, Ctrl-C, resume, exit codes; and a service with TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.client import StudioClient, trusting
from core.rollouts import RunStore
from core.serving.process import EngineProcess
from tests.certificates import self_signed
from tests.conftest import ServeProcess, eventually
from tests.left_out import only_in_ci

pytestmark = pytest.mark.timeout(900)
N_ATTEMPTS = 4
N_SLOTS = 8 * N_ATTEMPTS
"""Enough that a run is not at its end when a busy machine gets to its kill."""
ADMIN = "an-admin-key-of-0123456789"


class Command:
    """``claw-studio rollout ARGS`` with these settings."""

    def __init__(self, *args: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "core.cli", "rollout", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def lines(self, n: int) -> list[str]:
        """The next ``n`` lines of its output."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(n)]

    def end(self) -> tuple[int, list[str], str]:
        """Exit code, the rest of its output, and what it wrote to stderr."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out.splitlines(), err


@only_in_ci("three runs of a pack")
def test_killed_cancelled_and_resumed(engine: EngineProcess, pack: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {"CLAW_STUDIO_ENGINE": str(engine.base_url)}
    own = ["--data", str(data)]
    first = Command(str(pack), "--attempts", str(N_ATTEMPTS), "--workers", "2", "--name", "one", *own, **env)
    begun, *ended = first.lines(3)
    assert begun.startswith("run one: demo-pack") and begun.endswith(
        f"; 8 tasks × {N_ATTEMPTS} attempts, 2 at a time"
    ), begun
    assert all(": solved, score 1" in line or ": failed, score 0" in line for line in ended), ended
    first.process.kill()
    assert first.end()[0] == -signal.SIGKILL
    run = RunStore(data / "rollouts").get("one")
    eventually(lambda: not run.in_progress)
    before = {(*one.slot, one.retry): one for one in run.attempts() if one.state == "done"}
    assert 2 <= len(before) < N_SLOTS

    second = Command("--resume", "one", "--workers", "1", *own, **env)
    second.lines(2)
    second.process.send_signal(signal.SIGINT)
    code, _, err = second.end()
    assert code == 1 and "claw-studio rollout --resume one goes on" in err, (code, err)
    assert not run.in_progress and len(run.newest()) < N_SLOTS

    code, lines, err = Command("--resume", "one", "--workers", "8", "--json", *own, **env).end()
    assert code == 0, err
    *attempts, status = map(json.loads, lines)
    assert (status["progress"]["state"], status["progress"]["n_done"]) == ("finished", N_SLOTS)
    assert {"solved", "failed"} <= {one["outcome"] for one in attempts}
    made = {(*one.slot, one.retry): one for one in run.attempts()}
    assert before.items() <= made.items()
    assert Counter(one.slot for one in made.values() if one.outcome != "lost") == dict.fromkeys(run.newest(), 1)
    assert sum(status["progress"]["outcomes"].values()) == len(run.newest()) == N_SLOTS

    code, _, err = Command("--resume", "one", *own, **env).end()
    assert code == 2 and "nothing is left to do" in err


def test_a_service_with_a_certificate(engine: EngineProcess, pack: Path, tmp_path: Path) -> None:
    """Command and supervisor speak HTTPS to it; agents in sandboxes need not trust its certificate."""
    cert, key = self_signed(tmp_path, "studio", "IP:127.0.0.1")
    secret = {"CLAW_STUDIO_API_KEY": ADMIN, "CLAW_STUDIO_TLS_CERT": str(cert), "CLAW_STUDIO_TLS_KEY": str(key)}
    service = ServeProcess(tmp_path / "data", str(engine.base_url), env=secret)
    try:
        assert service.base_url.startswith("https://127.0.0.1:")
        with pytest.raises(httpx.ConnectError):
            service.http.get("/v1/models")
        tasks = sorted(path.name for path in pack.iterdir())[:3]
        args = ["--tasks", ",".join(tasks), "--workers", "3", "--data", str(tmp_path / "data"), "--json"]
        code, lines, err = Command(str(pack), *args, **secret).end()
        assert code == 0, err
        attempts: list[dict[str, Any]] = [json.loads(line) for line in lines[:-1]]
        assert sorted(one["task_id"] for one in attempts) == tasks
        assert {one["outcome"] for one in attempts} <= {"solved", "failed"}
        with StudioClient(service.base_url, api_key=ADMIN, tls=trusting(cert)) as studio:
            for one in attempts:
                trajectory = studio.trajectory(one["trajectory_uid"])
                assert trajectory["complete"] and trajectory["reward"] == one["score"]
                assert len(trajectory["steps"]) >= 2
                assert {step["identity_source"] for step in trajectory["steps"]} == {"key"}
    finally:
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no pack is named"),
        (["no-such-pack"], "no pack 'no-such-pack' is stored"),
        (["--resume", "no-such-run"], "no run 'no-such-run'"),
        (["any-pack", "--command", "sh -c 'echo {prompt}"], "command: the command line can't be read"),
    ],
)
def test_wrong_wishes(args: list[str], message: str, engine: EngineProcess, tmp_path: Path) -> None:
    code, out, err = Command(*args, "--data", str(tmp_path / "d"), CLAW_STUDIO_ENGINE=str(engine.base_url)).end()
    assert (code, out) == (2, []) and message in err
