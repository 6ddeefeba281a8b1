"""Measures typical queries of a pool of a million steps, repeated with seeded variation, and memory.

    python bench/pool/bench_pool.py [--trajectories 20000] [--repeat 30] [--seed 0] [--grown]

The pool is ``bench/pool/enrich.py``'s: 1,000,000 steps with tokens, messages, tools, labels. It is opened and read
ahead as a service does. Each case is one call as a page or the API makes it; the first call of each is apart (files
still cold). Writes go to a copy. With ``--grown`` it is ``grow.py``'s of 10,000,000 steps, which is written in place,
and plans are measured too.
Writes bench/results/pool.json; ``bench_disk.py`` adds the peers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from bench.pool.enrich import TOOLS, ensure_rich, rare_word  # noqa: E402
from bench.pool.grow import ensure_grown  # noqa: E402
from core.batch.plan import plan  # noqa: E402
from core.batch.recipe import parse_recipe  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.types import Annotation, Step, View  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "pool.json"
FACETS = (
    "channel", "agent", "model", "source", "quality", "trajectory_quality", "trainable", "complete", "call_kind",
    "status", "transition", "token_source", "finish_reason", "policy_version", "identity_source", "engine", "correct",
    "findings", "tags", "tool_names",
)  # fmt: skip
"""Every facet that the Inspect page shows."""

ORDERS = (
    "created_at desc",
    "latency_s desc",
    "trajectory_reward desc",
    "n_tokens",
    "agent",
    "reward desc",
    "difficulty",
)


def random_view(rng: random.Random, n: int | None = None) -> View:
    """One to three filters, now and then with a condition."""
    low = rng.random()
    choices: dict[str, Any] = {
        "channel": "train",
        "agent": rng.sample(["coder", "browser", "shell"], 2),
        "model": "policy-8b",
        "source": ["blackbox", "service"],
        "finish_reason": "length",
        "trainable": rng.random() < 0.8,
        "trajectory_reward": [0.5, 1],
        "latency_s": [low, low + 0.5],
        "n_prompt_tokens": [rng.randrange(2000, 20_000), None],
        "step_index": [0, rng.randrange(1, 50)],
        "policy_version": [rng.randrange(20), None],
        "staleness": [0, rng.randrange(1, 20)],
        "difficulty": [0.2, 0.8],
        "quality": "bad",
        "tags": "needs review",
        "findings": rng.choice(["tool_error", "drift", "truncated", "zero_variance"]),
        "tool_names": rng.choice(TOOLS),
        "status": "ok",
    }
    names = rng.sample(sorted(choices), n or rng.randint(1, 3))
    where = rng.choice(["", "", "n_response_tokens > 50 AND latency_s < 1.5", "step_index % 2 = 0 OR agent = 'coder'"])
    return View({name: choices[name] for name in names}, where)


def quantile(values: list[float], q: float) -> float:
    """The value that a share ``q`` of the values doesn't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * len(ordered) * 1000) // 1000) - 1))]


class Bench:
    """Times calls and stores the durations, in milliseconds."""

    def __init__(self, repeat: int, seed: int) -> None:
        self.repeat, self.seed = repeat, seed
        self.cases: dict[str, dict[str, Any]] = {}

    def run(
        self,
        name: str,
        call: Callable[[random.Random], Any],
        repeat: int | None = None,
        *,
        before: Callable[[random.Random], Any] | None = None,
    ) -> None:
        """Time a call ``repeat`` times after a first one; what happens ``before`` each is not timed."""
        rng = random.Random(f"{self.seed}{name}")
        took, cpu = [], []
        for _ in range((repeat or self.repeat) + 1):
            if before is not None:
                before(rng)
            began, used = time.perf_counter(), time.process_time()
            call(rng)
            took.append((time.perf_counter() - began) * 1e3)
            cpu.append((time.process_time() - used) * 1e3)
        self.keep(name, took[1:], first_ms=round(took[0], 1), cpu_p50_ms=round(statistics.median(cpu[1:]), 1))

    def keep(self, name: str, took: list[float], **more: Any) -> None:
        """Store the durations of a case."""
        self.cases[name] = {
            "p50_ms": round(statistics.median(took), 1),
            "p95_ms": round(quantile(took, 0.95), 1),
            "max_ms": round(max(took), 1),
            "n": len(took),
            **more,
        }
        print(f"{name:52s} {self.cases[name]}", flush=True)


@dataclass(frozen=True)
class Shape:
    """How many trajectories the pool has, of how many steps each, and which steps a bulk edit takes."""

    n_trajectories: int
    n_each: int
    bulk: str

    @property
    def n_steps(self) -> int:
        """Steps of the pool."""
        return self.n_trajectories * self.n_each


def reads(bench: Bench, pool: Pool, shape: Shape) -> None:
    """Everything that only looks."""
    n_steps, n_trajectories, n_each = shape.n_steps, shape.n_trajectories, shape.n_each
    everything = View()
    bench.run("facets: all 20 of the whole pool", lambda r: pool.stats.facets(everything, FACETS))
    bench.run("facets: all 20 of a filtered view", lambda r: pool.stats.facets(random_view(r), FACETS))
    bench.run("count: a filtered view", lambda r: pool.steps.count(random_view(r)))
    bench.run("count trajectories: a filtered view", lambda r: pool.trajectories.count(random_view(r)))
    bench.run("page: newest of all", lambda r: pool.steps.page(everything))
    bench.run("page: filtered, any order", lambda r: pool.steps.page(random_view(r), order=r.choice(ORDERS)))
    bench.run(
        "page: deep in all, any order",
        lambda r: pool.steps.page(everything, order=r.choice(ORDERS), offset=r.randrange(n_steps // 2, n_steps - 50)),
    )
    bench.run("groups page: all", lambda r: pool.groups.page(offset=50 * r.randrange(40)))
    bench.run("groups page: filtered", lambda r: pool.groups.page(random_view(r), order="reward_mean desc"))
    bench.run("trajectories page: all", lambda r: pool.trajectories.page(offset=50 * r.randrange(300)))
    bench.run("trajectories page: filtered", lambda r: pool.trajectories.page(random_view(r), order="reward desc"))
    columns = ("latency_s", "trajectory_reward", "n_tokens", "staleness", "difficulty", "n_steps")
    bench.run("histogram: a filtered view", lambda r: pool.stats.histogram(random_view(r), r.choice(columns), 30))
    bench.run("stats", lambda r: pool.stats.totals())
    some = lambda r: f"t{r.randrange(n_trajectories):06d}"  # noqa: E731
    bench.run(f"one trajectory of {n_each} steps, tokens and messages", lambda r: pool.trajectories.get(some(r)))
    bench.run(f"one trajectory of {n_each} steps, rows only", lambda r: pool.trajectories.get(some(r), tokens=False))
    bench.run("one step, whole", lambda r: pool.steps.get(f"{some(r)}.{r.randrange(n_each)}"))
    bench.run("one prompt group", lambda r: pool.groups.get(f"g{r.randrange(n_trajectories // 8):05d}"))
    began, used = time.perf_counter(), time.process_time()
    while pool.cache.prepare_search():
        pass
    cpu = round((time.process_time() - used) * 1e3, 1)
    bench.keep("text search: made ready, as the service does", [(time.perf_counter() - began) * 1e3], cpu_p50_ms=cpu)
    bench.run(
        "text search: first page of a new word",
        lambda r: pool.steps.page(View({"text": f"{rare_word(r.randrange(250))} "[: r.randint(8, 9)]})),
        min(bench.repeat, 10),
    )
    word = View({"text": rare_word(7)})
    pool.steps.count(word)
    bench.run("text search: pages, counts of a known word", lambda r: (pool.steps.page(word), pool.steps.count(word)))
    bench.run("text search: facets of a known word", lambda r: pool.stats.facets(word, FACETS))


def hundred(now: float) -> list[Step]:
    """A trajectory of 100 steps whose context grows to 50,000 tokens."""
    rng = np.random.default_rng(1)
    prompt, parent, steps = rng.integers(0, 150_000, 2000, dtype=np.int32), None, []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Mend the build."}]
    for k in range(100):
        answer = rng.integers(0, 150_000, 100, dtype=np.int32)
        steps.append(
            Step(
                step_uid=f"hundred.{k}", trajectory_uid="hundred", prompt_uid="hundred", step_index=k,
                created_at=now + k,
                prompt_ids=prompt, response_ids=answer, response_logprobs=np.full(100, -0.5, np.float32),
                messages=list(messages), response_message={"role": "assistant", "content": f"Step {k}."},
                parent_step_uid=parent, n_shared_tokens=len(prompt) - 380 if k else 0, token_source="engine",
                n_shared_messages=len(messages) - 1 if k else 0, transition="extends" if k else None,
            )
        )  # fmt: skip
        parent = f"hundred.{k}"
        prompt = np.concatenate([prompt, answer, rng.integers(0, 150_000, 380, dtype=np.int32)])
        messages += [steps[-1].response_message, {"role": "user", "content": f"Result {k}: " + "word " * 300}]
    return steps


def plans(bench: Bench, pool: Pool) -> None:
    """Plans of everything, and of a batch."""
    batch = parse_recipe({"algorithm": "grpo", "n_rollouts": 8, "batch_size": 512})
    everything = parse_recipe({"algorithm": "grpo"})
    bench.run("plan: 512 groups of 8, grpo", lambda r: plan(pool, View(), batch), 2)
    bench.run("plan: everything, grpo", lambda r: plan(pool, View(), everything), 2)


def writes(bench: Bench, pool: Pool, shape: Shape) -> None:
    """Labels, arrivals, and reads right after them."""
    n_trajectories = shape.n_trajectories
    now = time.time()
    pool.steps.append(hundred(now))
    bench.run("one trajectory of 100 steps, tokens and messages", lambda r: pool.trajectories.get("hundred"))
    some = lambda r: f"t{r.randrange(n_trajectories):06d}"  # noqa: E731

    def label(r: random.Random) -> None:
        kind, value = r.choice([("quality", "good"), ("reward", 0.5), ("tag", "x"), ("trainable", False)])
        target = (
            {"step_uid": f"{some(r)}.{r.randrange(shape.n_each)}"} if r.random() < 0.7 else {"trajectory_uid": some(r)}
        )
        pool.labels.annotate([Annotation(kind, value, "bench", "human", now, **target)])

    bench.run("label one step or trajectory", label)
    number = iter(range(10_000))

    def arrive(r: random.Random, n: int) -> None:
        base = next(number)
        pool.steps.append(
            [
                Step(
                    f"new{base}.{i}", f"new{base}.{i % 20}", "new", i // 20, now, prompt_ids=list(range(200)),
                    response_ids=[1, 2, 3], messages=[{"role": "user", "content": f"Do {base} {i}"}],
                    response_message={"role": "assistant", "content": f"Done {i}"},
                )
                for i in range(n)
            ],
            positions={"bench": base},
        )  # fmt: skip

    bench.run("one step arrives", lambda r: arrive(r, 1), 15)
    bench.run("500 steps arrive", lambda r: arrive(r, 500), 10)
    arrives = lambda r: arrive(r, r.choice([1, 1, 100]))  # noqa: E731
    bench.run(
        "facets: all 20, right after steps arrived", lambda r: pool.stats.facets(View(), FACETS), 15, before=arrives
    )
    bench.run("facets: all 20, right after a label", lambda r: pool.stats.facets(View(), FACETS), 10, before=label)
    bench.run(
        "page: deep in all, right after steps arrived",
        lambda r: pool.steps.page(View(), order=r.choice(ORDERS), offset=r.randrange(2 * shape.n_steps // 5)),
        15,
        before=arrives,
    )
    view = View(where=shape.bulk)
    n = pool.steps.count(view)
    made: dict[str, list[tuple[float, float]]] = {
        name: [] for name in ("preview counts", "label", "undo", "redo", "facets after")
    }

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began, used = time.perf_counter(), time.process_time()
        result = call()
        made[name].append(((time.perf_counter() - began) * 1e3, (time.process_time() - used) * 1e3))
        return result

    for kind, value in (("quality", "good"), ("reward", 0.25), ("tag", "bulk"), ("trainable", False)):
        timed(
            "preview counts", lambda: (pool.steps.count(view), pool.trajectories.count(view), pool.groups.count(view))
        )
        give = lambda k=kind, v=value: pool.labels.annotate_view(view, "step", k, v, author="bench", source="human")  # noqa: E731
        action, _ = timed("label", give)
        timed("facets after", lambda: pool.stats.facets(View(), FACETS))
        timed("undo", lambda a=action: pool.labels.undo(a))
        timed("redo", lambda a=action: pool.labels.redo(a))
        pool.labels.undo(action)
    for name, took in made.items():
        cpu = round(statistics.median(used for _, used in took), 1)
        bench.keep(f"bulk, {n:,} steps: {name}", [wall for wall, _ in took], cpu_p50_ms=cpu)
    bench.run("page: newest of all, after the writes", lambda r: pool.steps.page(View()))


def rss_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak(threading.Thread):
    """Watches resident memory: the highest seen, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mb, self._done = 0.0, threading.Event()

    def run(self) -> None:
        """Look every 50 ms."""
        while not self._done.wait(0.05):
            self.mb = max(self.mb, rss_mb())

    def stop(self) -> float:
        """Stop watching; the peak."""
        self._done.set()
        self.join()
        return round(self.mb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--grown", action="store_true", help="10,000,000 steps")
    given = parser.parse_args()
    if given.grown:
        source, shape = ensure_grown(), Shape(100_000, 100, "step_index % 10 = 7")
    else:
        source, shape = (
            ensure_rich(given.trajectories),
            Shape(given.trajectories, 50, "step_index = 7 OR latency_s < 0.13"),
        )
    bench = Bench(given.repeat, given.seed)
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        path = source
        if not given.grown:
            path = Path(folder) / "pool.duckdb"
            shutil.copy(source, path)
        before = rss_mb()
        began = time.perf_counter()
        pool = Pool.open(path, memory=given.memory)
        opened = time.perf_counter() - began
        peak = Peak()
        peak.start()
        began = time.perf_counter()
        pool.cache.warm()  # a service does so in a background thread
        warmed, after_warm = time.perf_counter() - began, rss_mb()
        try:
            n = pool.steps.count()
            reads(bench, pool, shape)
            after_reads = rss_mb()
            if given.grown:
                plans(bench, pool)
            writes(bench, pool, shape)
        finally:
            pool.close()
        memory = {
            "before": round(before),
            "warm": round(after_warm),
            "after_reads": round(after_reads),
            "peak": peak.stop(),
        }
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["ten million" if given.grown else "million"] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": load,
            "load_after": os.getloadavg(),
        },
        "versions": {"python": platform.python_version(), **{m: version(m) for m in ("duckdb", "pyarrow", "numpy")}},
        "pool": {
            "n_steps": n,
            "bytes": source.stat().st_size,
            "open_ms": round(opened * 1e3, 1),
            "warm_ms": round(warmed * 1e3, 1),
        },
        "memory_limit": given.memory,
        "rss_mb": memory,
        "cases": bench.cases,
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
