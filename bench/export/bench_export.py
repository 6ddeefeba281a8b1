"""Export speed and memory by format, compared with Hugging Face ``datasets``.

    python bench/export/bench_export.py [--trajectories 20000] [--groups 2 8]

Each format writes plans of two sizes in processes of their own: memory that doesn't grow with the plan is bounded by
the row group. The peer makes the TRL file from Python lists, as trainers' own examples do. ``reading alone`` restores
the same steps from the pool as rows of arrays and writes nothing. ``loading`` is what the trainer's own reading of the
file costs (``bench/export/loading.py``). Writes bench/results/export.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.export.loading import loading  # noqa: E402
from bench.pool.generate import ensure  # noqa: E402
from core.batch.plan import Plan, plan  # noqa: E402
from core.batch.recipe import parse_recipe  # noqa: E402
from core.batch.rows import training_rows  # noqa: E402
from core.errors import StudioError  # noqa: E402
from core.export import EXPORTERS, export  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.types import View  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "export.json"
ALGORITHM = {"trl_dpo": "dpo", "trl_kto": "kto"}
PEER = "peer: datasets.from_list"
READING = "reading alone"


def options_of(name: str) -> list[dict[str, str]]:
    """Every option of a format at each of its values."""
    choices = EXPORTERS[name].choices
    return [{"merge": value} for value in choices["merge"]] if "merge" in choices else [{}]


def peer(made: Plan, pool: Pool, folder: Path) -> int:
    """Steps as Python lists through ``datasets``; returns the tokens written."""
    from datasets import Dataset

    rows = []
    for uid in made.step_uids:
        step = pool.steps.get(uid)
        prompt, response = list(step["prompt_ids"]), list(step["response_ids"])
        rows.append({"input_ids": prompt + response, "labels": [-100] * len(prompt) + response})
    Dataset.from_list(rows).to_parquet(str(folder / "peer.parquet"))
    return sum(len(row["input_ids"]) for row in rows)


def one(source: str, name: str, options: dict[str, str], groups: int, queue: Any) -> None:
    """Measure one export in this process."""
    try:
        with tempfile.TemporaryDirectory(dir=Path(source).parent) as folder:
            pool = Pool.open(source)
            try:
                recipe = {"algorithm": ALGORITHM.get(name, "grpo"), "n_rollouts": 8, "batch_size": groups}
                made = plan(pool, View(), parse_recipe(recipe))
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                path: Path | None = None
                began, cpu = time.perf_counter(), time.process_time()
                if name == READING:
                    n_tokens = sum(len(rows.ids) for rows in training_rows(made, pool.training, merge=False))
                elif name == PEER:
                    n_tokens, path = peer(made, pool, Path(folder)), Path(folder) / "peer.parquet"
                else:
                    result = export(made, pool, name, Path(folder), **options)
                    n_tokens, path = result.n_tokens, result.path
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                n_bytes = 0 if path is None else path.stat().st_size
                loaded = None if path is None else loading(path, n_tokens)
            finally:
                pool.close()
    except StudioError as error:
        # A format that can't hold this plan says why; that is a result too.
        queue.put({"refused": error.message})
        return
    queue.put(
        {
            "n_tokens": n_tokens,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu, 3),
            "cpu_ns_per_source_token": round(cpu / int(made.lengths.sum()) * 1e9, 1),
            "mtokens_per_s": round(n_tokens / seconds / 1e6, 1),
            "source_mtokens_per_s": round(int(made.lengths.sum()) / seconds / 1e6, 1),
            "file_mb": round(n_bytes / 1e6, 1),
            "rss_before_mb": before // 1024,
            "rss_peak_mb": after // 1024,
            "loading": loaded,
        }
    )


def measured(source: Path, name: str, options: dict[str, str], groups: int) -> dict[str, Any]:
    """``one`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=one, args=(str(source), name, options, groups, queue))
    process.start()
    measured: dict[str, Any] = queue.get(timeout=600)
    process.join()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--groups", type=int, nargs=2, default=(2, 8))
    given = parser.parse_args()
    formats: dict[str, Any] = {}
    results = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_at_start": os.getloadavg()[0],
        },
        "versions": {n: version(n) for n in ("duckdb", "pyarrow", "numpy", "datasets")},
        "about": "mtokens_per_s counts tokens written; source_mtokens_per_s those of the plan's steps, shared or not; "
        "cpu_seconds are of all threads; loading is the trainer's reading of the file, by tokens written",
        "formats": formats,
    }
    original = ensure(given.trajectories)
    with tempfile.TemporaryDirectory(dir=original.parent) as folder:
        source = Path(folder) / "pool.duckdb"
        shutil.copy(original, source)
        jobs = [(name, options) for name in EXPORTERS for options in options_of(name)]
        for name, options in [(PEER, {}), (READING, {}), *jobs]:
            label = " ".join([name, *options.values()])
            formats[label] = {f"{n} groups": measured(source, name, options, n) for n in given.groups}
            print(label, formats[label], flush=True)
            RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
