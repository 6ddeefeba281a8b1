"""How attempts end, in real sandboxes: each outcome, its reason, and no reward where there is no score.

The agent runs its task's text as a shell script, so each task says how its attempt goes; ``ask`` is a model call.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from core.config import Settings
from core.errors import InvalidInput
from core.packs import Pack, PackFile, PackTask
from core.packs.clawgym import reward_script
from core.packs.model import REWARD_SH
from core.rollouts import Run
from core.rollouts.planning import Wish
from core.service import Service
from core.supervisors import STOP_S
from tests.conftest import eventually, scripted_engine

pytestmark = pytest.mark.timeout(600)

AGENT = """
import json, os, subprocess, sys, urllib.request
url, model, script = sys.argv[1:]
if script.startswith("ask"):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": script}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers)).read()
    script = script.removeprefix("ask")
sys.exit(subprocess.call(["sh", "-c", script.strip("; ") or "true"]))
"""
YES = "import json, pathlib, sys\np = pathlib.Path(sys.argv[1], 'out.txt')\n"
YES += "print(json.dumps({'there': p.exists(), 'right': p.exists() and p.read_text() == 'yes'}))\n"
HOG = f"{sys.executable} -c 'x = bytearray(1 << 30); print(sum(x))'"
CHECK_S, MEMORY_MB = 20.0, 200

# task -> the agent's script, the check, the outcome, the score, a part of the reason
CASES: dict[str, tuple[str, str | None, str, float | None, str]] = {
    "right": ("ask; printf yes > out.txt", YES, "solved", 1.0, ""),
    "half": ("ask; printf no > out.txt", YES, "failed", 0.5, ""),
    "nothing": ("ask", YES, "failed", 0.0, ""),
    "late": ("ask; printf yes > out.txt; sleep 3600", YES, "timed_out", 1.0, "ended after"),
    "late and wrong": ("ask; sleep 3600", YES, "timed_out", 0.0, "ended after"),
    "silent": ("true", YES, "crashed", None, "no model call that was answered"),
    "refused by the engine": ("ask no", YES, "crashed", None, "HTTP Error 5"),
    "exits": ("ask; echo 'out of luck' >&2; exit 3", YES, "crashed", None, "ended with code 3: out of luck"),
    "hungry": (f"ask; {HOG}", YES, "crashed", None, "the agent e"),
    "check fails": ("ask", "raise ValueError('a bug')", "crashed", None, "check: "),
    "check hangs": ("ask", "import time\ntime.sleep(3600)", "crashed", None, f"did not end within {CHECK_S:g} s"),
    "check says NaN": ("ask", "print('{\"a\": NaN}')", "crashed", None, "check: "),
    "image": ("ask", YES, "refused", None, "container image busybox"),
    "rubric": ("ask", None, "refused", None, "the task has a rubric and no check by code"),
    "neither": ("ask", None, "refused", None, "neither a check nor a rubric"),
}
SCRIPT = {
    "model": "scripted-1",
    "rules": [{"when": {"contains": "ask no"}, "fault": "status:500"}],
    "default": {"reply": {"content": "Well."}},
}
RULE = {"name": "right", "file_path": "out.txt", "scores": {"0": "no", "1": "yes"}}


def task_of(name: str) -> PackTask:
    script, check, *_ = CASES[name]
    files = {} if check is None else {"reward.sh": reward_script(), "check.py": PackFile(check.encode())}
    return PackTask(
        name,
        script,
        checker=None if check is None else REWARD_SH,
        checker_files=files,
        rules=(RULE,) if name == "rubric" else (),
        image="busybox" if name == "image" else None,
        timeout_s=8.0 if "late" in name else None,
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("outcomes")
    (folder / "agent.py").write_text(AGENT)
    with scripted_engine(folder, SCRIPT) as engine:
        service = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
        try:
            yield service
        finally:
            service.close()


def start(service: Service, names: Iterable[str], check_time_s: float) -> Run:
    """A run of these cases, begun."""
    entry = service.rollouts.packs.keep(Pack("cases", [task_of(name) for name in names], "made"), now=1.0)
    agent = service.settings.data_dir.parent / "agent.py"
    wish = Wish(
        agent="command",
        command=[sys.executable, str(agent), "{base_url}", "{model}", "{prompt}"],
        model="scripted-1",
        workers=4,
        check_time_s=check_time_s,
        memory_mb=MEMORY_MB,
    )
    return service.rollouts.start(entry.version, wish)


@pytest.fixture(scope="module")
def ended(service: Service) -> tuple[Service, Run]:
    """A run of all cases, after its end."""
    run = start(service, CASES, CHECK_S)
    finish(service, run)
    return service, run


def finish(service: Service, run: Run) -> dict[str, Any]:
    eventually(lambda: service.rollouts.status(run)["progress"]["state"] != "running", timeout_s=400)
    status = service.rollouts.status(run)
    assert (status["error"], status["progress"]["state"]) == (None, "finished")
    progress: dict[str, Any] = status["progress"]
    return progress


@pytest.mark.parametrize("name", CASES)
def test_an_attempt_ends_with_its_outcome(name: str, ended: tuple[Service, Run]) -> None:
    service, run = ended
    _, _, outcome, score, reason = CASES[name]
    attempt = run.newest()[name, 0]
    log = (run.read_log(attempt) or b"").decode()
    assert (attempt.outcome, attempt.score) == (outcome, score), (attempt.reason, log)
    assert (attempt.reason is None) if not reason else reason in str(attempt.reason), attempt.reason
    assert service.ingest.catch_up(60)
    if name in {"image", "silent"}:  # nothing was asked, so there is nothing to train on
        assert attempt.trajectory_uid not in service.pool.trajectories.uids()
        return
    trajectory = service.pool.trajectories.get(attempt.trajectory_uid)
    assert (trajectory["complete"], trajectory["reward"], trajectory["outcome"]) == (True, score, outcome)


def test_only_scores_count_and_only_what_has_none_is_made_again(ended: tuple[Service, Run]) -> None:
    service, run = ended
    before = {one.task_id: one for one in run.newest().values()}
    scores = [score for *_, score, _ in CASES.values() if score is not None]
    progress = service.rollouts.status(run)["progress"]
    assert (progress["n_scored"], progress["mean_score"]) == (len(scores), math.fsum(scores) / len(scores))
    for outcome in ("solved", "failed", "timed_out"):
        with pytest.raises(InvalidInput, match="are not made again"):
            service.rollouts.resume(run.settings.run, retry=[outcome])
    service.rollouts.resume(run.settings.run, retry=["refused"])
    assert finish(service, run)["outcomes"] == progress["outcomes"]
    after = {one.task_id: one for one in run.newest().values()}
    assert {name for name, one in after.items() if one.retry == 1} == {"image", "rubric", "neither"}
    assert all(after[name] == one for name, one in before.items() if one.outcome != "refused")


def test_a_cancel_ends_a_check_too(service: Service) -> None:
    """The check would take its hour; the attempt is lost, the key void, and no other process has to clean up."""
    run = start(service, ["check hangs"], 3600.0)
    eventually(lambda: [one.state for one in run.newest().values()] == ["verifying"], timeout_s=120)
    began = time.monotonic()
    assert service.rollouts.cancel(run.settings.run)
    assert time.monotonic() - began < STOP_S, "the supervisor had to be killed"
    (attempt,) = run.newest().values()
    assert (attempt.state, attempt.outcome, attempt.score) == ("done", "lost", None)
    assert attempt.reason == "the run was cancelled"
