"""Compares learning runs whose rollouts are 0, 1 and 4 policy versions behind, in one process, without the studio.

    python bench/learn/bench_staleness.py [--staleness 0 1 4] [--seeds 0 1] [--updates 15]

The first update of each run is at staleness 0; from then on the staleness grows by one an update up to its limit.
Sampling, rows, comparison of log-probs and update are those of the product. Writes bench/results/staleness.json after
each run; runs that it already holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.learn import direct  # noqa: E402
from bench.learn.bench_control import evaluate  # noqa: E402
from bench.tree.common import machine  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "staleness.json"
DRAWN = ("logprob_difference_mean", "logprob_difference_max", "kl", "clip_fraction", "entropy", "grad_norm")


def measure(staleness: int, seed: int, updates: int) -> dict[str, Any]:
    """One run; the metrics are means over the updates at full staleness."""
    (before, after), metrics = direct.run(seed, updates=updates, evaluate=evaluate, staleness=staleness)
    full = [one for one in metrics if one["staleness_max"] == staleness]
    return {
        "staleness": staleness,
        "seed": seed,
        "updates": updates,
        "before": before,
        "after": after,
        "metrics": {name: statistics.fmean(one[name] for one in full) for name in DRAWN},
        "reward": [round(one["reward_mean"], 4) for one in metrics],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="compare runs by the staleness of their rollouts")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--updates", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": []}
    report["machine"] = machine("torch") | {"load_at_start": round(os.getloadavg()[0], 1)}
    for seed in arguments.seeds:
        for staleness in arguments.staleness:
            asked = (staleness, seed, arguments.updates)
            if asked not in [(one["staleness"], one["seed"], one["updates"]) for one in report["runs"]]:
                report["runs"].append(measure(*asked))
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")
                print(json.dumps(report["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
