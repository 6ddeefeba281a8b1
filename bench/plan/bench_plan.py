"""Measures plans and leases over a million steps.

    python bench/plan/bench_plan.py [--trajectories 20000] [--repeat 5]

The pool is ``bench/pool/generate.py``'s. Times are wall clock, the first run of each beside the median of the others.
Writes bench/results/plan.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.pool.generate import ensure  # noqa: E402
from core.batch.leases import Fetch, Leases  # noqa: E402
from core.batch.plan import plan  # noqa: E402
from core.batch.recipe import parse_recipe  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.types import View  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "plan.json"
CASES: dict[str, tuple[View, dict[str, Any]]] = {
    "everything, grpo": (View(), {"algorithm": "grpo"}),
    "512 groups of 8, grpo": (View(), {"algorithm": "grpo", "n_rollouts": 8, "batch_size": 512}),
    "64 groups, fresh, newest first": (
        View(),
        {"algorithm": "grpo", "n_rollouts": 8, "batch_size": 64, "max_staleness": 3, "order": "newest"},
    ),
    "a filtered view, variance first": (
        View({"agent": ["coder", "shell"]}, "n_response_tokens > 50 AND latency_s < 2"),
        {"algorithm": "rloo", "batch_size": 256, "order": "variance"},
    ),
    "sft, best of 2": (View(), {"algorithm": "sft", "options": {"best_of": 2}}),
    "dpo pairs": (View(), {"algorithm": "dpo"}),
}


def timed(work: Callable[[], Any], repeat: int) -> tuple[Any, dict[str, float]]:
    """The last result; seconds of the first run and the median of the others."""
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    rest = seconds[1:] or seconds
    return result, {"first_s": round(seconds[0], 3), "median_s": round(statistics.median(rest), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    source = ensure(given.trajectories)
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        path = Path(folder) / "pool.duckdb"
        shutil.copy(source, path)
        pool = Pool.open(path)
        pool.cache.warm()  # a service does so in a background thread
        try:
            measured = measure(pool, given.repeat)
        finally:
            pool.close()
    RESULTS.write_text(json.dumps(measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


def measure(pool: Pool, repeat: int) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for name, (view, data) in CASES.items():
        recipe = parse_recipe(data)
        made, times = timed(lambda v=view, r=recipe: plan(pool, v, r), repeat)
        cases[name] = {**times, "n_groups": made.n_groups, "n_steps": len(made.steps)}
        print(name, cases[name], flush=True)
    number = itertools.count()
    leases = Leases(pool, time.time, lambda: f"bench-{next(number)}", lambda _: 19)
    recipe = {"algorithm": "grpo", "n_rollouts": 8, "batch_size": 64}
    leased, times = timed(lambda: leases.fetch(Fetch("bench", recipe=recipe)), repeat)
    if leased.batch is None:
        raise SystemExit(f"--trajectories: {repeat} leases of 64 groups of 8 need more than there are")
    cases["fetch: plan and lease 64 groups"] = {**times, "n_steps": len(leased.plan.steps)}
    _, times = timed(lambda: pool.batches.finish(leased.batch["batch_uid"], "acked"), 1)
    cases["acknowledge"] = {"first_s": times["first_s"]}
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("duckdb", "pyarrow", "numpy")}},
        "pool": {"n_steps": pool.steps.count(), "n_groups": pool.groups.count()},
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "cases": cases,
    }


if __name__ == "__main__":
    main()
