"""Prefix-tree build and layout against Claw-R1's PrefixTree.build, TRL's TreeRow and a dict trie, in one run.

    python bench/tree/bench_build.py [--out bench/results/tree.json] [--repeat 5]

Groups of rollouts that share a task prompt, each step's prompt extending the step before it. ``build`` reads every
token; ``build_deltas`` uses what the pool knows about who leads whom. A peer that would take minutes runs on the first
groups only and its time is multiplied (``extrapolated_by``). ``memory`` is one copy of all ids, and one pass of reading
them: the floor of any method that reads its input.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import agent_groups, claw_r1_tree, dict_trie, machine, timed, trl_samples, without_deltas

from core.tree.build import build
from core.tree.order import sort_with_lcp
from core.tree.sequences import Sequences

CASES = {
    "160 x 5k": {"groups": 1, "rollouts": 16, "steps": 10, "prompt": 3000, "response": 150, "observation": 227},
    "960 x 16k": {"groups": 1, "rollouts": 16, "steps": 60, "prompt": 4000, "response": 160, "observation": 237},
    "10,000 x 8k": {"groups": 25, "rollouts": 16, "steps": 25, "prompt": 3200, "response": 160, "observation": 240},
}
PEER_TOKENS = 16_000_000
"""A peer is given at most about so many tokens."""


def peers(sequences: Sequences, n_packed: int) -> dict[str, dict[str, float]]:
    """Seconds of each peer, input as each wants it made beforehand."""
    lists = [sequences.sequence(i).tolist() for i in range(len(sequences))]
    results: dict[str, dict[str, float]] = {}
    gc.collect()
    gc.disable()  # as kind to them as can be: millions of live dicts make the collector walk for nothing
    try:
        counted: list[int] = []
        results["dict trie"] = {"s": timed(lambda: counted.append(dict_trie(lists)))}
        assert counted == [n_packed], "all count the same tree"
        claw_r1 = claw_r1_tree()
        if claw_r1 is not None:
            trees: list[Any] = []
            results["Claw-R1 PrefixTree.build"] = {"s": timed(lambda: trees.append(claw_r1.build(lists)))}
            assert trees[0].total_tokens == n_packed
            trees.clear()
        gc.collect()
        from trl.experimental.async_grpo.packing import TreeRow

        row, samples = TreeRow(), trl_samples(sequences)
        add = timed(lambda: [row.add(sample) for sample in samples])
        results["TRL TreeRow add + pack"] = {"s": add + timed(row.pack), "add_s": add}
    finally:
        gc.enable()
    return results


def measure(case: dict[str, int], repeat: int) -> dict[str, Any]:
    known = agent_groups(**case)
    sequences = without_deltas(known)
    tree, again = build(sequences), build(known)
    for name in ("tokens", "end", "position_ids", "run_start", "run_length"):
        assert np.array_equal(getattr(tree, name), getattr(again, name)), name
    n_packed = tree.n_packed
    del tree, again
    copied = sequences.ids.copy()
    build_s, deltas_s, copy_s, read_s = 1e9, 1e9, 1e9, 1e9
    for _ in range(repeat):  # interleaved: what else the machine does meets all of them
        build_s = min(build_s, timed(lambda: build(sequences)))
        deltas_s = min(deltas_s, timed(lambda: build(known)))
        copy_s = min(copy_s, timed(lambda: np.copyto(copied, sequences.ids)))
        read_s = min(read_s, timed(sequences.ids.max))
    sort_s = timed(lambda: sort_with_lcp(sequences), 2)
    n = sequences.n_tokens
    part, factor = sequences, 1
    if n > PEER_TOKENS:
        groups = max(1, int(case["groups"] * PEER_TOKENS / 2 / n))
        part, factor = without_deltas(agent_groups(**{**case, "groups": groups})), case["groups"] / groups
    others = peers(part, build(part).n_packed)
    for one in others.values():
        one["tokens_per_s"] = part.n_tokens / one["s"]
        one["s"] *= factor
        one["build_is_faster_by"] = one["s"] / build_s
    return {
        "case": case,
        "n_sequences": len(sequences),
        "n_tokens": n,
        "n_packed_tokens": n_packed,
        "token_ratio": n_packed / n,
        "build_s": build_s,
        "build_deltas_s": deltas_s,
        "sort_and_compare_s": sort_s,
        "tokens_per_s": n / build_s,
        "tokens_per_s_deltas": n / deltas_s,
        "memory": {"copy_s": copy_s, "read_s": read_s, "build_over_copy": build_s / copy_s},
        "extrapolated_by": factor,
        "peers": others,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "tree.json")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", help="one case")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine("numpy", "pyarrow", "trl", "torch"), "repeat": arguments.repeat}
    result["cases"] = {}
    for name, case in CASES.items():
        if arguments.only in (None, name):
            one = result["cases"][name] = measure(case, arguments.repeat)
            print(
                f"{name}: {one['n_tokens']:,} -> {one['n_packed_tokens']:,} tokens in {one['build_s'] * 1e3:.2f} ms, "
                f"{one['tokens_per_s'] / 1e6:.0f} M tokens/s ({one['memory']['build_over_copy']:.1f} copies), "
                f"with deltas {one['build_deltas_s'] * 1e3:.2f} ms",
                *(f"{peer} {v['s']:.2f} s, {v['build_is_faster_by']:.0f}x" for peer, v in one["peers"].items()),
                sep="\n   ",
                flush=True,
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
