"""Compares learning runs that allow rollouts to be 0, 1 and 4 policy versions behind, through the product.

    python bench/learn/bench_staleness_product.py [--staleness 0 1 4] [--seeds 0] [--updates 10]

Each run is one ``claw-studio demo --learn --max-staleness N`` on an empty data folder. The limit is what the run
allows: how far behind the rollouts are depends on how long they and the updates take. Training time is from the end of
the first evaluation to the last update. Differences of log-probs are those that the trainer sent with each batch.
``bench_staleness.py`` holds the staleness at the limit, in one process. Writes bench/results/staleness_product.json
after each run; runs that it already holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.learn.bench_learn import of_folder  # noqa: E402
from bench.tree.common import machine  # noqa: E402
from core.batch.learning import Update, updates  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.tasks.learn import TRAIN_CHANNEL  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "staleness_product.json"
MEANS = ("logprob_difference_mean", "kl", "clip_fraction", "entropy")


def measure(staleness: int, seed: int, n_updates: int) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as folder:
        command = [sys.executable, "-m", "core.cli", "demo", "--learn", "--json", "--data", folder]
        command += ["--seed", str(seed), "--updates", str(n_updates), "--max-staleness", str(staleness)]
        load = os.getloadavg()[0]
        events, at = followed(command)
        (drawn,) = of_folder(Path(folder), events)
        made = updates_of(Path(folder))
    kinds = [one["event"] for one in events]
    last = max(n for n, kind in enumerate(kinds) if kind == "update")
    # The evaluations of the first version precede the first update.
    first = max(n for n, kind in enumerate(kinds[: kinds.index("update")]) if kind == "evaluation")
    return {
        "max_staleness": staleness,
        "seed": seed,
        "updates": n_updates,
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "training_s": round(at[last] - at[first], 1),
        "held_out": [drawn["held_out"][0], drawn["held_out"][-1]],
        "greedy": [drawn["greedy"][0], drawn["greedy"][-1]],
        "metrics": drawn_metrics(made),
    }


def followed(command: list[str]) -> tuple[list[dict[str, Any]], list[float]]:
    """The events of a run and the times at which they came, seconds (monotonic)."""
    events, at = [], []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("{"):
                events.append(json.loads(line))
                at.append(time.monotonic())
    if run.returncode:
        raise SystemExit(run.returncode)
    return events, at


def updates_of(folder: Path) -> list[Update]:
    """The updates of a finished run."""
    pool = Pool.open(folder / "pool.duckdb")
    try:
        return updates(pool, TRAIN_CHANNEL)
    finally:
        pool.close()


def drawn_metrics(made: list[Update]) -> dict[str, float]:
    """Metrics of the trainer: means over the updates, and the largest difference."""
    means = {name: statistics.fmean(one.metrics[name] for one in made) for name in MEANS}
    return {**means, "logprob_difference_max": max(one.metrics["logprob_difference_max"] for one in made)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="compare runs by the staleness that they allow, through the product")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": []}
    report["machine"] = machine("torch", "transformers", "duckdb")
    known = {(one["max_staleness"], one["seed"], one["updates"]) for one in report["runs"]}
    for seed in arguments.seeds:
        for staleness in arguments.staleness:
            if (staleness, seed, arguments.updates) not in known:
                report["runs"].append(measure(staleness, seed, arguments.updates))
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")
                print(json.dumps(report["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
