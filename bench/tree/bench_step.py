"""One training step (forward and backward, PPO clip, a small Qwen3) packed against separate sequences, on the CPU.

    python bench/tree/bench_step.py [--out bench/results/tree_step.json] [--repeat 3]

``packed`` is one row with tree attention; ``padded`` one batch of all sequences padded to the longest; ``unpadded``
one sequence after another, gradients summed: no token is computed that isn't asked for, so 1 / token ratio is the
ideal of packing against it. All three score only the sampled tokens, by the same code, and their gradients are
compared. Times are the best of interleaved runs in one process, by the clock and by the processors' time
(which other programs on the machine disturb less); memory is the high-water mark of a process of its
own, less what it held before the step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import machine, timed

from core.tree.attention import packed_hidden, use_tree_attention
from core.tree.build import PackedTree, build
from core.tree.losses import batch_loss
from core.tree.scores import scores_from_hidden, token_scores
from core.tree.sequences import Sequences
from core.tree.terms import Denominators, LossTerms, denominators, loss_terms

SIZES = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
# Shared prefix and own response of n rollouts; (P + n r) / (n (P + r)) is the ratio.
CASES = {
    "0.5": {"rollouts": 4, "prefix": 512, "response": 256},
    "0.2": {"rollouts": 8, "prefix": 683, "response": 64},
    "0.08": {"rollouts": 16, "prefix": 840, "response": 16},
}
WAYS = ("packed", "unpadded", "padded")


class Step:
    """A model, its batch, and the three ways to one gradient."""

    def __init__(self, case: dict[str, int]) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        self.model = Qwen3ForCausalLM(Qwen3Config(**SIZES, attn_implementation="sdpa")).train()
        rng = np.random.default_rng(0)
        prefix = rng.integers(0, SIZES["vocab_size"], case["prefix"])
        # Lengths differ a little, as they do; without it padding would cost nothing.
        sizes = case["response"] + rng.integers(-case["response"] // 4, case["response"] // 4 + 1, case["rollouts"])
        responses = [rng.integers(0, SIZES["vocab_size"], n) for n in sizes]
        old = [-7.7 - rng.random(n).astype(np.float32) * 0.2 for n in sizes]
        self.sequences = Sequences.from_lists([prefix] * len(sizes), responses, old)
        advantages = rng.normal(size=len(sizes)).astype(np.float32)
        self.row = build(self.sequences)
        self.terms = loss_terms(self.row, self.sequences, advantages)
        self.totals = denominators([self.terms])
        self.alone: list[tuple[PackedTree, LossTerms]] = []
        for i in range(len(sizes)):
            one = self.sequences.take([i])
            row = build(one)
            self.alone.append((row, loss_terms(row, one, advantages[i : i + 1])))

    def run(self, way: str) -> None:
        """Forward and backward; gradients are left in the model."""
        self.model.zero_grad(set_to_none=True)
        getattr(self, way)()

    def packed(self) -> None:
        """One row."""
        use_tree_attention(self.model, "cascade")
        scores = token_scores(self.model, packed_hidden(self.model, self.row), self.terms)
        self.loss(scores.logp, self.terms).backward()

    def unpadded(self) -> None:
        """One sequence after another."""
        import torch

        self.model.set_attn_implementation("sdpa")
        for row, terms in self.alone:
            ids = torch.from_numpy(row.tokens.astype(np.int64))[None]
            hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
            self.loss(token_scores(self.model, hidden, terms).logp, terms).backward()

    def padded(self) -> None:
        """One batch, right-padded."""
        import torch

        self.model.set_attn_implementation("sdpa")
        longest = int(self.sequences.lengths.max())
        ids = torch.zeros(len(self.alone), longest, dtype=torch.long)
        mask = torch.zeros(len(self.alone), longest, dtype=torch.long)
        for i, (row, _) in enumerate(self.alone):
            ids[i, : len(row.tokens)] = torch.from_numpy(row.tokens.astype(np.int64))
            mask[i, : len(row.tokens)] = 1
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        weight = self.model.get_output_embeddings().weight
        total = sum(
            self.loss(scores_from_hidden(hidden[i], weight, None, terms).logp, terms)
            for i, (_, terms) in enumerate(self.alone)
        )
        total.backward()

    def loss(self, logp: Any, terms: LossTerms) -> Any:
        """These terms' share of the batch's loss."""
        totals: Denominators = self.totals
        return batch_loss("ppo_clip", logp, terms, totals)

    def gradient(self, way: str) -> Any:
        """All gradients as one vector."""
        import torch

        self.run(way)
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])


def memory(field: str) -> float:
    """``VmRSS``, or its high-water mark ``VmHWM``, of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def memory_of(name: str, way: str) -> float:
    """Memory that one step of one method adds, MiB, measured in a separate process."""
    command = [sys.executable, __file__, "--one", name, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure(name: str, repeat: int) -> dict[str, Any]:
    step = Step(CASES[name])
    exact = step.gradient("unpadded")
    errors = {way: float((step.gradient(way) - exact).norm() / exact.norm()) for way in ("packed", "padded")}
    assert max(errors.values()) < 1e-4, errors
    times = dict.fromkeys(WAYS, float("inf"))
    cpu = dict.fromkeys(WAYS, float("inf"))
    for _ in range(repeat):
        for way in WAYS:
            started = time.process_time()
            times[way] = min(times[way], timed(lambda way=way: step.run(way)))
            cpu[way] = min(cpu[way], time.process_time() - started)
    ratio = step.row.token_ratio
    assert ratio is not None
    speedup = times["unpadded"] / times["packed"]
    return {
        "case": CASES[name],
        "n_tokens": step.row.n_original,
        "n_packed_tokens": step.row.n_packed,
        "token_ratio": ratio,
        "step_s": times,
        "step_cpu_s": cpu,
        "memory_mib": {way: memory_of(name, way) for way in WAYS},
        "gradient_error": errors,
        "ideal": 1 / ratio,
        "speedup_over_unpadded": speedup,
        "speedup_over_padded": times["padded"] / times["packed"],
        "share_of_ideal": speedup * ratio,
        "share_of_ideal_by_cpu_time": cpu["unpadded"] / cpu["packed"] * ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "tree_step.json")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch; with 1, CPU time holds on a busy machine too")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "WAY"), help="print the memory that one step adds, MiB")
    arguments = parser.parse_args()
    if arguments.one:
        name, way = arguments.one
        step = Step(CASES[name])
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the high-water mark so far
        before = memory("VmRSS")
        step.run(way)
        print(memory("VmHWM") - before)
        return
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "machine": machine("torch", "transformers", "numpy"),
        "model": SIZES,
        "cases": {},
    }
    for name in CASES:
        one = result["cases"][name] = measure(name, arguments.repeat)
        print(
            f"ratio {one['token_ratio']:.3f}: {one['speedup_over_unpadded']:.2f}x unpadded (ideal {one['ideal']:.2f}, "
            f"{one['share_of_ideal']:.2f} of it, "
            f"{one['share_of_ideal_by_cpu_time']:.2f} by CPU time), {one['speedup_over_padded']:.2f}x padded; "
            + ", ".join(f"{way} {one['step_s'][way]:.2f} s, {one['memory_mib'][way]:.0f} MiB" for way in WAYS),
            flush=True,
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
