"""Compares a learning run whose processes are killed with one that is left alone: is the final score the same?

    python bench/learn/bench_kills.py [--kills 0 20] [--seeds 0] [--updates 15]

Tasks, policy, reference trainer and their settings are those of ``claw-studio demo --learn``. Trainer, embedded engine,
gateway process and studio run as in a user's deployment (``claw-studio serve`` with one gateway process) and are killed
in turn with SIGKILL at random moments from the start to the last update; trainer and studio are started again. An
attempt that fails is repeated as another trajectory. Writes bench/results/learn_kills.json after each run; runs that it
already holds are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
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
from core.pool.learning import VersionReward  # noqa: E402
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
from tests.e2e.test_loop_kills import ROLES, Loop, check_batches  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "learn_kills.json"
N_RETRIES = 40
LONGEST_DELAY_S = 3.0
"""A kill comes up to this long after the update that it waits for."""


class Persistent(LearnRun):
    """A learning run that repeats attempts which fail."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.n_repeated = 0
        self._counting = threading.Lock()

    def attempt_all(self, attempts: Sequence[Attempt]) -> list[float | None]:
        """Run attempts until each has come to its end, then complete them with their rewards in one call."""
        with ThreadPoolExecutor(N_PARALLEL, thread_name_prefix="learn") as threads:
            made = list(threads.map(self._repeated, attempts))
        if not self._should_stop():
            self._studio.complete_many(dict(made))
        return [reward for _, reward in made]

    def _repeated(self, attempt: Attempt) -> tuple[str, float | None]:
        """The trajectory that came to its end, and its reward."""
        for number in itertools.count():
            if self._should_stop():
                break
            uid = attempt.trajectory_uid + (f"-again{number}" if number else "")
            try:
                return uid, self._attempt(replace(attempt, trajectory_uid=uid))
            except StudioError:
                with self._counting:
                    self.n_repeated += 1
                time.sleep(0.2)
        return attempt.trajectory_uid, None


class Restarted:
    """Stands for the trainer where a run asks whether it ended: it is started again after each kill."""

    def poll(self) -> None:
        """It has not ended."""


class Kills(threading.Thread):
    """Kills the roles in turn, spread over the updates."""

    def __init__(self, loop: Loop, n_kills: int, settings: LearnSettings) -> None:
        super().__init__(name="kills", daemon=True)
        self.loop, self.n_kills, self.settings = loop, n_kills, settings
        self.error: BaseException | None = None

    def run(self) -> None:
        """Kill until all kills are done; an error is kept for the thread that waits."""
        draw = random.Random(f"{self.settings.seed}/{self.n_kills}")
        try:
            for number in range(self.n_kills):
                self.loop.await_update(number * (self.settings.updates - 1) // self.n_kills)
                time.sleep(draw.uniform(0, LONGEST_DELAY_S))
                self.loop.kill(ROLES[number % len(ROLES)])
        except BaseException as error:
            self.error = error


def measure(n_kills: int, settings: LearnSettings) -> dict[str, Any]:
    """One run in a new folder."""
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as name:
        folder = Path(name)
        options = ["--groups", str(settings.n_tasks), "--rollouts", str(settings.n_rollouts)]
        options += ["--lr", str(settings.learning_rate), "--seed", str(settings.seed), "--max-staleness", "0"]
        loop = Loop(folder, POLICY / "model", free_port(), *options, "--channel", TRAIN_CHANNEL)
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            first = int(loop.trainer.line()["version"])
            kills = Kills(loop, n_kills, settings)
            studio = StudioClient(loop.studio.base_url, n_retries=N_RETRIES)
            run = Persistent(studio, settings, name="run", report=report, should_stop=lambda: kills.error is not None)
            kills.start()
            run.run(first, Restarted())  # type: ignore[arg-type]
            kills.join()
            if kills.error is not None:
                raise kills.error
            seconds = time.monotonic() - began
            loop.stop_trainer()
            trained = loop.state()["batches"][: settings.updates]
            check_batches(loop.studio, trained)
        finally:
            loop.trainer.popen.kill()
            loop.trainer.popen.communicate(timeout=30)
            loop.studio.stop()
            loop.errors.close()
        last = first + settings.updates
        return {
            "seed": settings.seed,
            "updates": settings.updates,
            "n_kills": n_kills,
            "kills": dict(loop.killed),
            "repeated_attempts": run.n_repeated,
            "seconds": round(seconds, 1),
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "held_out": scores(folder, HELD_OUT_CHANNEL, first, last),
            "greedy": scores(folder, GREEDY_CHANNEL, first, last),
        }


def report(message: dict[str, Any]) -> None:
    """Progress, a JSON object a line."""
    print(json.dumps(message), flush=True)


def scores(folder: Path, channel: str, *versions: int) -> list[list[float]]:
    """Number of attempts, mean and its 95 % band at these versions."""
    pool = Pool.open(folder / "data" / "pool.duckdb")
    try:
        points: dict[int | None, VersionReward] = {one.version: one for one in pool.learning.by_version(channel)}
    finally:
        pool.close()
    drawn = [points[version] for version in versions]
    return [[one.n_trajectories, *(round(x or 0, 4) for x in (one.mean, one.low, one.high))] for one in drawn]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="compare learning runs with and without kills")
    parser.add_argument("--kills", type=int, nargs="+", default=[0, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--updates", type=int, default=DEFAULTS.updates)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": []}
    results["machine"] = machine("torch", "transformers", "duckdb")
    known = {(one["n_kills"], one["seed"], one["updates"]) for one in results["runs"]}
    for seed in arguments.seeds:
        for n_kills in arguments.kills:
            if (n_kills, seed, arguments.updates) not in known:
                settings = LearnSettings(arguments.updates, seed, evaluate_every=arguments.updates)
                results["runs"].append(measure(n_kills, settings))
                arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                print(json.dumps(results["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
