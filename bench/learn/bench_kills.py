"""What the shipped policy learns while trainer, engine, gateway worker and studio are killed, and without kills.

    python bench/learn/bench_kills.py [--kills 20 0] [--updates 22] [--seed 0]

The tasks, rollouts and settings are those of ``claw-studio demo --learn``; the processes are those of
``tests/e2e/test_loop_kills.py``, killed in turn, one after each update, at a random moment. An attempt that fails is
repeated as another trajectory with the same sampling seed. Held-out tasks are attempted before the first kill and after
the last one. Then the test's own checks of batches, steps and versions run. Writes bench/results/learn_kills.json after
each run; runs that it already holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.tree.common import machine  # noqa: E402
from core.client import StudioClient  # noqa: E402
from core.errors import StudioError  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.tasks.learn import (  # noqa: E402
    DEFAULTS,
    GREEDY_CHANNEL,
    HELD_OUT_CHANNEL,
    N_PARALLEL,
    POLICY,
    TRAIN_CHANNEL,
    Attempt,
    LearnRun,
    LearnSettings,
)
from tests.browser.conftest import free_port  # noqa: E402
from tests.conftest import eventually  # noqa: E402
from tests.e2e.test_loop_kills import ROLES, Loop, check_batches, check_versions  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "learn_kills.json"
N_RETRIES = 40
PAUSE_S = 0.2
PATIENCE_S = 600.0
MOST_WAIT_S = 4.0
"""Kill n comes up to this long after update n, seconds: about the duration of one on a quiet machine."""


class Rollouts(LearnRun):
    """The demo's rollouts, which continue when the studio or an engine ends."""

    n_failed = 0

    def attempt_all(self, attempts: Sequence[Attempt]) -> list[float | None]:
        """As in the demo; failed attempts are repeated, each as another trajectory."""
        done: dict[str, float | None] = {}
        with ThreadPoolExecutor(N_PARALLEL) as threads:
            for uid, reward in threads.map(self._until_done, attempts):
                done[uid] = reward
        self._studio.complete_many(done)
        return list(done.values())

    def _until_done(self, attempt: Attempt) -> tuple[str, float | None]:
        for number in range(1000):
            one = replace(attempt, trajectory_uid=f"{attempt.trajectory_uid}{f'-again{number}' if number else ''}")
            try:
                return one.trajectory_uid, self._attempt(one)
            except StudioError:
                with self._lock:
                    self.n_failed += 1
                time.sleep(PAUSE_S)
        raise AssertionError(f"{attempt.trajectory_uid} failed 1000 times")

    def _wait_for(self, version: int, trainer: subprocess.Popen[bytes] | None) -> None:
        eventually(lambda: self._studio.policy_state()["version"] >= version, timeout_s=PATIENCE_S, every_s=PAUSE_S)


def measure(n_kills: int, seed: int, n_updates: int) -> dict[str, Any]:
    """One run in a new folder."""
    load, began = os.getloadavg()[0], time.monotonic()
    settings = LearnSettings(updates=n_updates, seed=seed, evaluate_every=n_updates)
    options = ["--groups", str(DEFAULTS.n_tasks), "--rollouts", str(DEFAULTS.n_rollouts), "--seed", str(seed)]
    options += ["--lr", str(DEFAULTS.learning_rate), "--channel", TRAIN_CHANNEL]
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as name:
        folder = Path(name)
        loop = Loop(folder, POLICY / "model", free_port(), *options)
        try:
            loop.trainer.line()
            client = StudioClient(loop.studio.base_url, n_retries=N_RETRIES)
            run = Rollouts(client, settings, name="run", report=lambda event: print(json.dumps(event), flush=True))
            kill_all(loop, run, n_kills, seed)
            loop.stop_trainer()
            check_batches(loop.studio, loop.state()["batches"])
            check_versions(loop, loop.state())
        finally:
            loop.trainer.popen.kill()
            loop.trainer.popen.communicate(timeout=30)
            loop.studio.stop()
            loop.errors.close()
        return {
            "kills": dict(loop.killed),
            "n_kills": n_kills,
            "seed": seed,
            "updates": n_updates,
            "failed_attempts": run.n_failed,
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "seconds": round(time.monotonic() - began, 1),
            "held_out": ends(folder / "data", HELD_OUT_CHANNEL),
            "greedy": ends(folder / "data", GREEDY_CHANNEL),
        }


def kill_all(loop: Loop, run: Rollouts, n_kills: int, seed: int) -> None:
    """Evaluate, train with kills, and evaluate again."""
    draw = random.Random(f"{seed}/{n_kills}")
    run.evaluate(0, end=True)
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            for update in range(run.settings.updates):
                run.attempt_all(run.rollouts_of(update, update))
                run._wait_for(update + 1, None)
        except BaseException as error:
            failures.append(error)

    producer = threading.Thread(target=produce, name="rollouts")
    producer.start()
    for number in range(n_kills):
        loop.await_update(number)
        time.sleep(draw.uniform(0, MOST_WAIT_S))
        loop.kill(ROLES[number % len(ROLES)])
        print(json.dumps({"event": "kill", "number": number + 1, "update": loop.state()["update"]}), flush=True)
    producer.join()
    if failures:
        raise failures[0]
    run.evaluate(run.settings.updates, end=True)


def ends(data: Path, channel: str) -> list[list[float]]:
    """``[version, attempts, mean, low, high]`` of the first and the last version in a channel; the band is of 95 %."""
    pool = Pool.open(data / "pool.duckdb")
    try:
        points = pool.learning.by_version(channel)
    finally:
        pool.close()
    return [
        [one.version or 0, one.n_trajectories, *(round(x, 4) for x in (one.mean, one.low or 0, one.high or 0))]
        for one in (points[0], points[-1])
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="measure what is learnt under kills")
    parser.add_argument("--kills", type=int, nargs="+", default=[20, 0])
    parser.add_argument("--updates", type=int, default=22)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if max(arguments.kills) >= arguments.updates:
        parser.error("--updates must exceed --kills: kill n waits for update n")
    report: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": []}
    report["machine"] = machine("torch", "transformers", "duckdb")
    known = {(one["n_kills"], one["seed"], one["updates"]) for one in report["runs"]}
    for n_kills in arguments.kills:
        if (n_kills, arguments.seed, arguments.updates) not in known:
            report["runs"].append(measure(n_kills, arguments.seed, arguments.updates))
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
            print(json.dumps(report["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
