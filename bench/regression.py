"""Processor time per call, per step and per token, as multiples of a fixed loop: did a change make one dearer?

    python bench/regression.py [--write]

Each cost is divided by the processor time of a reference loop that runs between the repetitions, so that the machine's
speed and most of what else it does cancel out. The least of the repetitions counts. Exits with 1 when a cost is more
than ``LIMIT`` times the committed one (bench/results/regression.json); ``--write`` commits new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "bench" / "gateway", ROOT / "bench" / "tree"):
    sys.path.insert(0, str(folder))

import numpy as np  # noqa: E402
from bench_capture import HERE, Case, about_run, drive, ready_port, running  # noqa: E402
from bench_sustained import measure_product, product  # noqa: E402
from common import agent_groups, without_deltas  # noqa: E402

from bench.pool.generate import generate  # noqa: E402
from core.batch.plan import plan  # noqa: E402
from core.batch.recipe import parse_recipe  # noqa: E402
from core.export import export  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.tree.build import build  # noqa: E402
from core.types import View  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "regression.json"
LIMIT = 2.0
"""A machine that does much else moves the quotients by up to a half."""
CALLS = {"small": 6.0, "agentic": 6.0}
"""Seconds of load by size of call."""
N_TRAJECTORIES, N_STEPS = 320, 50
TREE = {"groups": 1, "rollouts": 16, "steps": 20, "prompt": 3000, "response": 150, "observation": 227}


def reference_loop() -> float:
    """Processor seconds of interpreted code, JSON, hashing and array work in equal parts, about 0.1 s in all."""
    started = time.process_time()
    text = json.dumps({"messages": [{"role": "user", "content": "word " * 200}] * 20})
    for _ in range(60):
        json.dumps(json.loads(text))
    for _ in range(200):
        hashlib.sha256(text.encode()).digest()
    total = 0
    for number in range(400_000):
        total += number & 7
    values = np.arange(400_000, dtype=np.int64)[::-1]
    for _ in range(4):
        np.sort(values ^ 0x5555)
    return time.process_time() - started


def processor_s(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def calls(reference: list[float]) -> Iterator[tuple[str, float]]:
    """Of ``claw-studio serve`` in its default settings, from the request until the step is in the pool."""
    with contextlib.ExitStack() as outer:
        folder = Path(outer.enter_context(tempfile.TemporaryDirectory()))
        log = folder / "upstream.log"
        upstream = outer.enter_context(running([sys.executable, str(HERE / "load.py"), "upstream", "0"], log))
        engine = f"http://127.0.0.1:{ready_port(log, upstream)}"
        for size, seconds in CALLS.items():
            case = Case(size, 16, stream=False, growing=True)
            work = folder / size
            work.mkdir()
            with product(work, engine, None) as target:
                target.url = target.url.replace("/sessions/bench/", "/sessions/TRAJECTORY-NAMED/")
                drive(target, case, 1.0)
                costs = []
                for _ in range(2):
                    reference.append(reference_loop())
                    costs.append(measure_product(target, case, seconds)["cpu_ms_per_call"] / 1e3)
            yield f"{size} call", min(costs)


def steps(reference: list[float]) -> Iterator[tuple[str, float]]:
    """Of appending steps to a pool, planning over all of them, and of exported tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.duckdb"
        n = N_TRAJECTORIES * N_STEPS
        reference.append(reference_loop())
        yield "appended step", processor_s(lambda: generate(path, N_TRAJECTORIES, N_STEPS)) / n
        pool = Pool.open(path)
        try:
            recipe = parse_recipe({"algorithm": "grpo"})
            made = plan(pool, View(), recipe)
            costs = []
            for _ in range(5):
                reference.append(reference_loop())
                costs.append(processor_s(lambda: plan(pool, View(), recipe)))
            yield "planned step", min(costs) / len(made.steps)
            n_tokens = int(made.counts["n_tokens"])
            costs = []
            for number in range(3):
                reference.append(reference_loop())
                out = Path(folder) / f"export-{number}"
                costs.append(processor_s(lambda out=out: export(made, pool, "trl_grpo", out)))
            yield "exported token", min(costs) / n_tokens
        finally:
            pool.close()


def tokens(reference: list[float]) -> Iterator[tuple[str, float]]:
    """Of building a prefix tree."""
    sequences = without_deltas(agent_groups(**TREE))
    costs = []
    for _ in range(5):
        reference.append(reference_loop())
        costs.append(processor_s(lambda: build(sequences)))
    yield "token of a tree", min(costs) / sequences.n_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    load, started = os.getloadavg()[0], time.monotonic()
    committed = json.loads(RESULTS.read_text())["costs"] if RESULTS.exists() else {}
    reference: list[float] = [reference_loop()]
    seconds = {name: cost for part in (tokens, steps, calls) for name, cost in part(reference)}
    unit = min(reference)
    costs = {name: {"microseconds": cost * 1e6, "reference_loops": cost / unit} for name, cost in seconds.items()}
    dearer = []
    for name, cost in costs.items():
        before = committed.get(name, {}).get("reference_loops")
        times = "" if before is None else f", {cost['reference_loops'] / before:.2f} times the committed cost"
        print(f"{name:16} {cost['microseconds']:10.3f} us of processor time{times}", flush=True)
        if before is not None and cost["reference_loops"] > LIMIT * before:
            dearer.append(name)
    if given.write:
        about = about_run(load, started, reference_loop_ms=round(unit * 1e3, 1))
        RESULTS.write_text(json.dumps({**about, "limit": LIMIT, "costs": costs}, indent=1) + "\n")
        print(f"wrote {RESULTS.relative_to(ROOT)}")
    elif dearer:
        raise SystemExit(f"more than {LIMIT} times the committed processor time: {', '.join(dearer)}")


if __name__ == "__main__":
    main()
