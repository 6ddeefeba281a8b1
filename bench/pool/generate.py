"""Generates a pool of any size: prompt groups of growing contexts, through ``pool.steps.append`` like ingest.

    python bench/pool/generate.py [OUT] [--trajectories 20000] [--steps 50] [--seed 0]

The defaults make 1,000,000 steps whose contexts grow to 30,000 tokens: about 17 billion tokens as agents send them,
2.2 GB in the pool, some five minutes. Other benchmarks call ``ensure`` and find it under ``.cache/bench``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from core.pool import Pool
from core.types import PolicyEvent, PolicyEventKind, Step

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
GROUP = 8
TASK_TOKENS, NEW_TOKENS, RESPONSE_TOKENS = 2000, 460, 100
VOCABULARY = 151_936
BATCH = 5000
START = 1_790_000_000.0
VERSIONS = 20


def trajectory(
    number: int, n_steps: int, n_trajectories: int, rng: np.random.Generator, new_tokens: int
) -> Iterator[Step]:
    """One rollout: every prompt is the prompt before, its answer, and a tool result."""
    uid, group = f"t{number:06d}", f"g{number // GROUP:05d}"
    task = np.random.default_rng(number // GROUP).integers(0, VOCABULARY, TASK_TOKENS, dtype=np.int32)
    prompt, parent = task, None
    for k in range(n_steps):
        answer = rng.integers(0, VOCABULARY, RESPONSE_TOKENS, dtype=np.int32)
        kind = "auxiliary" if k == 0 and number % 5 == 0 else "main"
        yield Step(
            step_uid=f"{uid}.{k}",
            trajectory_uid=uid,
            prompt_uid=group,
            step_index=k,
            created_at=START + number + k / 100,
            channel="val" if number // GROUP % 20 == 0 else "train",
            agent=("coder", "browser", "shell")[number // GROUP % 3],
            model="policy-8b",
            engine="vllm",
            call_kind=kind,
            transition="extends" if k else None,
            token_source="engine",
            prompt_ids=prompt,
            response_ids=answer,
            response_logprobs=-rng.random(RESPONSE_TOKENS, dtype=np.float32),
            sampling={"temperature": 1.0},
            finish_reason="length" if rng.random() < 0.02 else "stop",
            latency_s=float(rng.gamma(2.0, 0.4)),
            policy_version=number * VERSIONS // n_trajectories,
            parent_step_uid=parent,
            n_shared_tokens=0 if k == 0 else len(prompt) - new_tokens,
            is_last=k == n_steps - 1,
        )
        parent = f"{uid}.{k}"
        token_ids = rng.integers(0, VOCABULARY, new_tokens, dtype=np.int32)
        prompt = np.concatenate([prompt, answer, token_ids])


def generate(
    path: Path, n_trajectories: int, n_steps: int, seed: int = 0, new_tokens: int = NEW_TOKENS
) -> dict[str, Any]:
    """Fill a new pool; returns counts and seconds."""
    rng = np.random.default_rng(seed)
    pool = Pool.open(path, clock=lambda: START)
    began = time.perf_counter()
    pending: list[Step] = []
    done: list[dict[str, Any]] = []
    n = 0

    def flush() -> None:
        nonlocal n
        n += pool.steps.append(pending, completions=done)
        pending.clear()
        done.clear()

    events = [PolicyEvent(v, PolicyEventKind.REGISTERED, START + v) for v in range(VERSIONS)]
    pool.steps.append([], policy_events=events)
    for number in range(n_trajectories):
        pending += trajectory(number, n_steps, n_trajectories, rng, new_tokens)
        reward = None if number % 50 == 49 else float(rng.random() < (number // GROUP % 10) / 9)
        done.append({"kind": "complete", "trajectory_uid": f"t{number:06d}", "reward": reward})
        if len(pending) >= BATCH:
            flush()
            if n % 100_000 < BATCH:
                print(f"{n:,} steps, {n / (time.perf_counter() - began):,.0f} a second", flush=True)
    flush()
    pool.close()
    return {"n_steps": n, "seconds": time.perf_counter() - began, "bytes": path.stat().st_size}


def size_of(n_trajectories: int, n_steps: int, new_tokens: int) -> str:
    """The part of a pool's file name that names its sizes."""
    return f"{n_trajectories}x{n_steps}" + (f"x{new_tokens}" if new_tokens != NEW_TOKENS else "")


def ensure(n_trajectories: int = 20_000, n_steps: int = 50, seed: int = 0, new_tokens: int = NEW_TOKENS) -> Path:
    """The pool of these sizes, made when it isn't there."""
    path = CACHE / f"pool-{size_of(n_trajectories, n_steps, new_tokens)}-{seed}.duckdb"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        for old in CACHE.glob(partial.name + "*"):
            old.unlink()
        print(generate(partial, n_trajectories, n_steps, seed, new_tokens))
        partial.rename(path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.out is None:
        print(ensure(given.trajectories, given.steps, given.seed))
    else:
        print(generate(given.out, given.trajectories, given.steps, given.seed))
