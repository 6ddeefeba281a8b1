"""How far runs drift whose rewards are shuffled: many seeds in one process each, without the studio.

    python bench/learn/bench_control.py [--seeds 24] [--updates 15] [--kinds trained plain balanced shifted]

``plain`` exchanges the advantages of each prompt group at random. ``balanced`` is the control of
``examples/train_policy.py``. ``shifted`` trains on true advantages and on captured log-probs that are shifted by one
token, with the guard off. Each run begins with the shipped weights and is evaluated before and after on the held-out
tasks with the same sampling seeds. Writes bench/results/control.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.learn import direct  # noqa: E402
from bench.tree.common import machine  # noqa: E402
from core.serving.qwen3 import Qwen3  # noqa: E402
from core.serving.tokenizer import ChatTokenizer  # noqa: E402
from core.trainer import TrainingRow  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "control.json"
N_ATTEMPTS = 4
"""Attempts of each held-out task at temperature 1."""


def plain(rows: list[TrainingRow], draw: random.Random) -> None:
    """Exchange the advantages of each prompt group at random."""
    groups: dict[str, list[TrainingRow]] = {}
    for row in rows:
        groups.setdefault(row.prompt_uid, []).append(row)
    for members in groups.values():
        values = [next(x for x in row.advantages if x is not None) for row in members]
        draw.shuffle(values)
        for row, value in zip(members, values, strict=True):
            row.advantages = [value if bit else None for bit in row.mask]


def shifted(rows: list[TrainingRow], draw: random.Random) -> None:
    """Give each token of a response the log-prob of the next one, and the last one that of the first."""
    for row in rows:
        for span in row.spans:
            values = row.logprobs[span.begin : span.end]
            row.logprobs[span.begin : span.end] = [*values[1:], *values[:1]]


KINDS: dict[str, direct.Spoil | None] = {
    "trained": None,
    "plain": plain,
    "balanced": direct.trainer.shuffled,
    "shifted": shifted,
}


def evaluate(model: Qwen3, tokenizer: ChatTokenizer) -> dict[str, float]:
    """Success on the held-out tasks, and the share of attempts whose actions are all valid."""
    _, held_out = direct.shipped_tasks()
    tasks = held_out * N_ATTEMPTS
    sampled = direct.attempt_all(model, tokenizer, tasks, [1000 * n for n in range(len(tasks))])
    greedy = direct.attempt_all(model, tokenizer, held_out, [0] * len(held_out), temperature=0)
    return {
        "success": statistics.fmean(one.reward for one in sampled),
        "greedy": statistics.fmean(one.reward for one in greedy),
        "valid": statistics.fmean(one.valid for one in sampled),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Gain of success at temperature 1, in points."""
    gains = [100 * (one["after"]["success"] - one["before"]["success"]) for one in runs]
    n, mean = len(gains), statistics.fmean(gains)
    deviation = statistics.stdev(gains) if n > 1 else None
    return {
        "n": n,
        "mean": round(mean, 2),
        "standard_deviation": None if deviation is None else round(deviation, 2),
        "standard_error": None if deviation is None else round(deviation / math.sqrt(n), 2),
        "least": round(min(gains), 1),
        "most": round(max(gains), 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="measure how far shuffled rewards drift")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--updates", type=int, default=15)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"updates": arguments.updates, "attempts": N_ATTEMPTS, "kinds": {}}
    if arguments.out.exists():
        earlier = json.loads(arguments.out.read_text())
        report = earlier if earlier["updates"] == arguments.updates else report
    report["machine"] = machine("torch") | {"load_at_start": round(os.getloadavg()[0], 1)}
    for seed in range(arguments.seeds):
        for kind in arguments.kinds:
            runs = report["kinds"].setdefault(kind, {"runs": []})["runs"]
            if seed in [one["seed"] for one in runs]:
                continue
            began = time.process_time()
            (before, after), metrics = direct.run(
                seed, updates=arguments.updates, spoil=KINDS[kind], evaluate=evaluate, guarded=kind != "shifted"
            )
            difference = metrics[0]["logprob_difference_mean"]
            runs.append({"seed": seed, "before": before, "after": after, "first_logprob_difference_mean": difference})
            report["kinds"][kind]["gain_points"] = summary(runs)
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
            print(seed, kind, json.dumps(after), round(time.process_time() - began, 1), flush=True)
    print(json.dumps({kind: one["gain_points"] for kind, one in report["kinds"].items()}, indent=1))


if __name__ == "__main__":
    main()
