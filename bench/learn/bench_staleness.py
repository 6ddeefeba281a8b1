"""Compares learning runs whose rollouts may be 0, 1 and 4 policy versions behind.

    python bench/learn/bench_staleness.py [--staleness 0 1 4] [--updates 8] [--seed 0]

Each run is one ``claw-studio demo --learn --max-staleness N`` on an empty data folder. Above 0 the rollouts do not wait
for the trainer. Writes bench/results/staleness.json after each run; runs that it already holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.tree.common import machine  # noqa: E402
from core.batch.learning import updates  # noqa: E402
from core.batch.offpolicy import by_staleness  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.tasks.learn import TRAIN_CHANNEL  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "staleness.json"


def measure(max_staleness: int, n_updates: int, seed: int, folder: Path) -> dict[str, Any]:
    """One run."""
    command = [sys.executable, "-m", "core.cli", "demo", "--learn", "--json", "--data", str(folder)]
    command += ["--seed", str(seed), "--updates", str(n_updates), "--max-staleness", str(max_staleness)]
    load, began = os.getloadavg()[0], time.monotonic()
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.monotonic() - began
    events = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    success = {
        name: [one["success"] for one in events if one["event"] == "evaluation" and one["temperature"] == temperature]
        for name, temperature in (("sampled", 1.0), ("greedy", 0.0))
    }
    pool = Pool.open(folder / "pool.duckdb")
    try:
        made = updates(pool, TRAIN_CHANNEL)
        apart = [asdict(one) for one in by_staleness(pool.consumption.differences(channel=TRAIN_CHANNEL))]
    finally:
        pool.close()
    return {
        "max_staleness": max_staleness,
        "updates": n_updates,
        "seed": seed,
        "load_at_start": round(load, 1),
        "wall_s": round(seconds, 1),
        "success": success,
        "staleness_max": [one.staleness_max for one in made],
        "staleness_mean": [one.metrics.get("staleness_mean") for one in made],
        "clip_fraction": [one.metrics.get("clip_fraction") for one in made],
        "by_staleness": apart,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="compare runs by the staleness that they allow")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": []}
    report["machine"] = machine("torch", "transformers", "duckdb")
    for staleness in arguments.staleness:
        asked = (staleness, arguments.updates, arguments.seed)
        if asked not in [(one["max_staleness"], one["updates"], one["seed"]) for one in report["runs"]]:
            with tempfile.TemporaryDirectory(prefix="claw-bench-") as folder:
                report["runs"].append(measure(*asked, Path(folder)))
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(report["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
