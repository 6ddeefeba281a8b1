"""Attempts per minute of a run beside a bare loop: ``python bench/rollouts/bench_rollouts.py [--save]``.

Both let the demo agent attempt the demo's eight tasks against the same scripted engine, as many at a time, and run
each task's ``reward.sh``. The bare loop starts agent and check as plain processes, with neither sandbox nor studio.
Measured with an engine that answers at once, which is the worst case for the run, and with one that takes ``--delay``
seconds for an answer. Loop and run alternate for ``--rounds`` rounds; the overhead compares their medians. Both must
give the same scores. Then 64 attempts run at once. Start-up of a sandbox: ``bench/sandbox/bench_start.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

from core.config import Settings
from core.harnesses.demo import MAX_TURNS
from core.rollouts import Attempt
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path
from tests.rollouts.demo_pack import bare_attempt, write_pack

RESULTS = Path(__file__).resolve().parents[1] / "results" / "rollouts.json"
AT_ONCE = 64
POLL_S = 0.5
"""The result does not depend on it: times come from the attempts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=8, help="attempts of each of the eight tasks")
    parser.add_argument("--workers", type=int, default=8, help="attempts at a time")
    parser.add_argument("--rounds", type=int, default=3, help="how often loop and run alternate")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds of the slower engine's answers")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    machine = {"processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "kernel": platform.release()}
    result: dict[str, Any] = {"machine": machine, "isolation": choose().isolation.level}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack = write_pack(folder / "pack")
        for label, delay_s in (
            ("engine answers at once", 0.0),
            (f"engine takes {arguments.delay:g} s", arguments.delay),
        ):
            with engine_with(folder, delay_s) as engine:
                bare, runs = [], []
                for number in range(arguments.rounds):
                    data = folder / f"data-{delay_s:g}-{number}"
                    bare.append(bare_loop(str(engine.base_url), pack, arguments.attempts, arguments.workers))
                    runs.append(rollouts(data, engine, pack, arguments.attempts, arguments.workers))
            scores = {one["mean_score"] for one in (*bare, *runs)}
            assert len(scores) == 1, f"loop and run give different mean scores: {sorted(scores)}"
            result[label] = {"bare_loop": bare, "rollouts": runs, "overhead": overhead(bare, runs)}
        with engine_with(folder, arguments.delay) as engine:
            result[f"{AT_ONCE} at once"] = rollouts(folder / "at-once", engine, pack, AT_ONCE // 8, AT_ONCE)
    print(json.dumps(result, indent=2))
    if arguments.save:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def overhead(bare: list[dict[str, Any]], runs: list[dict[str, Any]]) -> float:
    """By how much longer an attempt takes in a run than in the bare loop, by the medians of the rounds; 0.1 is 10 %."""
    medians = [statistics.median(one["attempts_per_minute"] for one in rounds) for rounds in (bare, runs)]
    return round(medians[0] / medians[1] - 1, 3)


def engine_with(folder: Path, delay_s: float) -> EngineProcess:
    """The demo's policy with this delay of each answer."""
    script = json.loads(demo_script_path().read_text())
    for rule in script["rules"]:
        rule["delay_s"] = delay_s
    path = folder / f"script-{delay_s:g}.json"
    path.write_text(json.dumps(script))
    engine = EngineProcess.start("scripted", args=["--script", path])
    engine.wait_ready()
    return engine


def bare_loop(base_url: str, pack: Path, n_attempts: int, n_workers: int) -> dict[str, Any]:
    """Agent and check as plain processes, so many at a time."""
    jobs = [(task, number) for number in range(n_attempts) for task in sorted(pack.iterdir())]
    before, begin = processor_s(), time.perf_counter()
    with ThreadPoolExecutor(n_workers) as threads:
        scores = list(threads.map(lambda job: bare_attempt(base_url, *job, MAX_TURNS), jobs))
    return figures(len(jobs), time.perf_counter() - begin, sum(scores) / len(scores), processor_s() - before)


def rollouts(data: Path, engine: EngineProcess, pack: Path, n_attempts: int, n_workers: int) -> dict[str, Any]:
    """The same attempts as a run of the studio; the time is from the first attempt's begin to the last one's end.

    The supervisor's own start is beside it, as ``start_s``: it is paid once a run.
    """
    service = Service.open(Settings(data_dir=data, port=0, engine=str(engine.base_url)))
    try:
        asked_at = time.time()
        run = service.rollouts.start(str(pack), Wish(attempts=n_attempts, workers=n_workers))
        while service.rollouts.status(run)["progress"]["in_progress"]:
            time.sleep(POLL_S)
        attempts = run.attempts()
    finally:
        service.close()
    scores = [one.score for one in attempts if one.score is not None]
    assert len(scores) == len(attempts) == 8 * n_attempts, [one.reason for one in attempts if one.score is None]
    begin = min(one.started_at or 0.0 for one in attempts)
    return {
        **figures(len(attempts), max(one.ended_at or 0.0 for one in attempts) - begin, sum(scores) / len(scores), None),
        "agents_processor_s": round(sum(one.cpu_s or 0.0 for one in attempts), 2),
        "start_s": round(begin - asked_at, 2),
        "most_at_once": most_at_once(attempts),
    }


def most_at_once(attempts: list[Attempt]) -> int:
    """The largest number of attempts that were under way at the same time."""
    moments = [(one.started_at or 0.0, 1) for one in attempts] + [(one.ended_at or 0.0, -1) for one in attempts]
    return max(accumulate(change for _, change in sorted(moments)))


def figures(n: int, wall_s: float, mean_score: float, cpu_s: float | None) -> dict[str, Any]:
    known = {} if cpu_s is None else {"processor_s": round(cpu_s, 2)}
    return {
        "attempts": n,
        "seconds": round(wall_s, 2),
        "attempts_per_minute": round(60 * n / wall_s, 1),
        "mean_score": round(mean_score, 4),
        **known,
    }


def processor_s() -> float:
    """Processor time of all children that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
