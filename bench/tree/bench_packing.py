"""Rows under a token budget: the planner against first-fit in arrival order, TRL's and AReaL's, in one run.

    python bench/tree/bench_packing.py [--out bench/results/packing.json]

Agent groups, once in the order in which rollouts of many groups arrive (by group), once shuffled. Tokens are those of
all rows without padding; ``floor`` is what one unbounded tree per group would hold. TRL's planner is its
``TokenBudgetBatcher`` with one rank, AReaL's its ``_greedy_build_tries``; both run as published.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import agent_groups, areal_planner, machine, timed, trl_samples, without_deltas

from core.tree.balance import balance_rows
from core.tree.build import build
from core.tree.packing import pack
from core.tree.sequences import Sequences

GROUP = {"groups": 2, "prompt": 2000, "response": 160, "observation": 240}
CASES = {
    "2 x 16 x 30 steps, 32k": ({**GROUP, "rollouts": 16, "steps": 30}, 32_768),
    "2 x 16 x 30 steps, 64k": ({**GROUP, "rollouts": 16, "steps": 30}, 65_536),
    "2 x 8 x 20 steps, 16k": ({**GROUP, "rollouts": 8, "steps": 20}, 16_384),
}


def first_fit(lists: list[list[int]], budget: int) -> list[int]:
    """Place each sequence, in order, in the first row with room for its new tokens; a dict trie per row."""
    rows: list[tuple[dict[int, Any], list[int]]] = []
    for ids in lists:
        for root, size in rows:
            node, shared = root, 0
            for token in ids:
                if token not in node:
                    break
                node, shared = node[token], shared + 1
            if size[0] + len(ids) - shared <= budget:
                break
        else:
            rows.append(({}, [0]))
            (root, size), shared, node = rows[-1], 0, rows[-1][0]
        for token in ids[shared:]:
            node[token] = node = {}
        size[0] += len(ids) - shared
    return [size[0] for _, size in rows]


def trl_rows(samples: list[dict[str, Any]], budget: int) -> list[int]:
    """Tokens of each row of TRL's planner. Its source never ends, so a sample as long as a row closes the last."""
    import torch
    from trl.experimental.async_grpo.async_grpo_trainer import TokenBudgetBatcher

    ids = torch.full((budget,), -1)
    closing = {"input_ids": ids, "completion_mask": torch.zeros_like(ids), "group_id": -1}
    sizes: list[int] = []
    for rows in TokenBudgetBatcher([*samples, closing], 1, budget, defaultdict(list)):
        sizes += [len(row.tokens) for row in rows]
    return sizes


def measure(case: dict[str, int], budget: int, repeat: int) -> dict[str, Any]:
    known = agent_groups(**case)
    groups = np.repeat(np.arange(case["groups"]), len(known) // case["groups"])
    result: dict[str, Any] = {"case": case, "token_budget": budget, "n_tokens": known.n_tokens}
    result["floor"] = sum(build(known.take(np.flatnonzero(groups == g))).n_packed for g in range(case["groups"]))
    shuffled = np.random.default_rng(1).permutation(len(known))
    for order, sequences, group in (
        ("arrival", known, groups),
        ("shuffled", without_deltas(known).take(shuffled), groups[shuffled]),
    ):
        result[order] = planners(sequences, group, budget, repeat)
    dealt = balance_rows(pack(known, groups, budget).rows, 4)
    result["balance_over_4_ranks"] = {"imbalance": dealt.imbalance, "rows": [len(rank) for rank in dealt.ranks]}
    return result


def planners(sequences: Sequences, group: np.ndarray, budget: int, repeat: int) -> dict[str, dict[str, float]]:
    packing = pack(sequences, group, budget)
    assert not len(packing.over_budget)
    ours = {"tokens": packing.n_packed, "rows": len(packing.rows)}
    results = {"claw studio": {**ours, "s": timed(lambda: pack(sequences, group, budget), repeat)}}
    lists = [sequences.sequence(i).tolist() for i in range(len(sequences))]
    samples = trl_samples(sequences, group)
    runs: dict[str, Any] = {"first fit, as they come": lambda: first_fit(lists, budget)}
    areal = areal_planner()
    if areal is not None:
        runs["AReaL"] = lambda: areal(lists, budget)
    runs["TRL"] = lambda: trl_rows(samples, budget)
    for name, run in runs.items():
        sizes: list[list[int]] = []
        s = timed(lambda run=run, sizes=sizes: sizes.append(run()))
        results[name] = {"tokens": sum(sizes[0]), "rows": len(sizes[0]), "s": s}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "packing.json")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine("numpy", "pyarrow", "trl"), "cases": {}}
    for name, (case, budget) in CASES.items():
        one = result["cases"][name] = measure(case, budget, arguments.repeat)
        for order in ("arrival", "shuffled"):
            print(f"{name}, {order} (of {one['n_tokens']:,}, floor {one['floor']:,})")
            for planner, v in one[order].items():
                print(f"   {planner}: {v['tokens']:,} tokens, {v['rows']} rows, {v['s'] * 1e3:.1f} ms", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
