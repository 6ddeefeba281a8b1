"""Prefix-tree build and layout against a plain dict trie, in one run.

    python bench/tree/bench_build.py [--out bench/results/tree.json] [--repeat 7]

Synthetic prompt groups: 16 rollouts that share a task prompt, each step's prompt extending the step before it. Times
are the best of ``repeat`` runs; ``memory_pass_s`` is one read of all token ids, the floor for any method.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from core.tree.build import build, layout
from core.tree.order import sort_with_lcp
from core.tree.packing import pack
from core.tree.sequences import Sequences

CASES = {
    "160 x 5k": {"rollouts": 16, "steps": 10, "prompt": 3000, "response": 150, "observation": 227},
    "960 x 16k": {"rollouts": 16, "steps": 60, "prompt": 4000, "response": 160, "observation": 237},
}
VOCABULARY = 151_936
TOKEN_BUDGET = 32_768


def group(case: dict[str, int], seed: int = 0) -> Sequences:
    """One prompt group's steps as sequences."""
    rng = np.random.default_rng(seed)
    prompts, responses = [], []

    def draw(n: int) -> np.ndarray:
        return rng.integers(0, VOCABULARY, n, dtype=np.int32)

    task = draw(case["prompt"])
    for _ in range(case["rollouts"]):
        context = task
        for _ in range(case["steps"]):
            answer = draw(case["response"])
            prompts.append(context)
            responses.append(answer)
            context = np.concatenate([context, answer, draw(case["observation"])])
    return Sequences.from_lists(prompts, responses)


def dict_trie(lists: list[list[int]]) -> int:
    """The obvious way: one dict entry per distinct prefix. Returns the number of packed tokens."""
    root: dict[int, Any] = {}
    n = 0
    for ids in lists:
        node = root
        for token in ids:
            below = node.get(token)
            if below is None:
                below = node[token] = {}
                n += 1
            node = below
    return n


def best(run: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(case: dict[str, int], repeat: int) -> dict[str, Any]:
    sequences = group(case)
    order, lcp = sort_with_lcp(sequences)
    tree = build(sequences)
    lists = [sequences.sequence(i).tolist() for i in range(len(sequences))]
    assert tree.n_packed == dict_trie(lists), "both count the same tree"
    one_group = np.zeros(len(sequences), dtype=np.int64)
    build_s = best(lambda: build(sequences), repeat)
    trie_s = best(lambda: dict_trie(lists), max(1, repeat // 3))
    packing = pack(sequences, one_group, TOKEN_BUDGET)
    return {
        **case,
        "n_sequences": len(sequences),
        "n_tokens": sequences.n_tokens,
        "n_packed_tokens": tree.n_packed,
        "token_ratio": tree.token_ratio,
        "build_s": build_s,
        "sort_and_compare_s": best(lambda: sort_with_lcp(sequences), repeat),
        "layout_s": best(lambda: layout(sequences, order, lcp), repeat),
        "tokens_per_s": sequences.n_tokens / build_s,
        "dict_trie_s": trie_s,
        "speedup_over_dict_trie": trie_s / build_s,
        "memory_pass_s": best(sequences.ids.max, repeat),
        "pack": {
            "token_budget": TOKEN_BUDGET,
            "pack_s": best(lambda: pack(sequences, one_group, TOKEN_BUDGET), repeat),
            "n_rows": len(packing.rows),
            "n_packed_tokens": packing.n_packed,
            "token_ratio": packing.n_packed / packing.n_original,
        },
    }


def machine() -> dict[str, Any]:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu, "n_cores": os.cpu_count(), "system": platform.system(), "load_at_start": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "tree.json")
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    result = {
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("numpy", "pyarrow")}},
        "repeat": arguments.repeat,
        "cases": {name: measure(case, arguments.repeat) for name, case in CASES.items()},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, case in result["cases"].items():
        print(
            f"{name}: {case['n_tokens']:,} -> {case['n_packed_tokens']:,} tokens in {case['build_s'] * 1e3:.2f} ms "
            f"({case['tokens_per_s'] / 1e6:.0f} M tokens/s), {case['speedup_over_dict_trie']:.0f}x a dict trie; "
            f"packed into {case['pack']['n_rows']} rows in {case['pack']['pack_s'] * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main()
