"""Run by verl's interpreter (test_recompute.py): AReaL's own code on our file. Prints one JSON line.

argv: folder with AReaL's source, our file, JSON of what the actor is configured with. With ``n_ranks`` so many
processes (gloo) take what AReaL's controller deals to them, and each does one update with AReaL's engine and loss. In
the place of a model stands one weight θ with log π = log μ + ln 1.1 + θ: an update is the loss's gradient by θ.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

from stubs import stub_missing

MOVED = 0.0953101798  # ln 1.1


def actor_of(given: dict[str, Any]) -> Any:
    """AReaL's actor with these settings, and no engine."""
    from areal.api.cli_args import NormConfig
    from areal.trainer.ppo.actor import PPOActor
    from areal.utils.data import KLEstimator, Normalization

    norm = given["reward_norm"]
    actor = object.__new__(PPOActor)
    actor.__dict__ |= dict(
        config=SimpleNamespace(
            overlong_reward_penalty=False, use_decoupled_loss=False, recompute_logprob=False, log_agent_stats=False,
            mask_no_eos_with_zero=False, eps_clip=10.0, eps_clip_higher=None, c_clip=None, rejection_sampling=None,
            importance_sampling_level="token", prox_logp_method="recompute", use_sapo_loss=False, sapo_tau_pos=1.0,
            sapo_tau_neg=1.05, ppo_n_minibatches=given.get("ppo_n_minibatches", 1),
        ),
        reward_bias=given["reward_bias"], reward_scaling=given["reward_scaling"], reward_clip=given["reward_clip"],
        reward_norm=None if norm is None else Normalization(NormConfig(**norm)), adv_norm=None,
        kl_ctl=given["kl_ctl"], kl_estimator=KLEstimator("k1"), mask_no_eos_with_zero=False, discount=1.0,
        gae_lambda=1.0, m2_threshold=None,
    )  # fmt: skip
    return actor


def engine_of(n_ranks: int, steps: list[dict[str, Any]]) -> Any:
    """AReaL's FSDP engine: its micro-batches, its loss weights and its scaling, around θ."""
    import torch
    from areal.api.cli_args import MicroBatchSpec
    from areal.engine.fsdp_engine import FSDPEngine

    class Engine(FSDPEngine):
        def __init__(self) -> None:
            self.theta = torch.zeros((), requires_grad=True)
            self.config = SimpleNamespace(
                is_critic=False, mb_spec=MicroBatchSpec(max_tokens_per_mb=40), pad_to_maximum=False
            )
            self.enable_tree_training = False
            self.parallel_helper = SimpleNamespace(dp_size=n_ranks, tp_size=1, sp_size=1)
            self.dp_group = torch.distributed.group.WORLD
            self.device = torch.device("cpu")
            self.model_config = SimpleNamespace(model_type="qwen3")
            self.logger = SimpleNamespace(info=lambda _: None)
            self.model = SimpleNamespace(train=lambda mode=True: None)

        def _ensure_ready(self) -> None:
            pass

        def get_version(self) -> int:
            return 5

        def optimizer_zero_grad(self) -> None:
            self.theta.grad = None

        def optimizer_step(self) -> dict[str, float]:
            # As FSDP does: the mean of the ranks' gradients.
            grad = self.theta.grad.clone()
            torch.distributed.all_reduce(grad)
            steps.append({"gradient": (grad / n_ranks).item(), "n_micro_batches": self.n_micro_batches})
            return {}

        def forward_backward_batch(self, mb_list: Any, process_output_fn: Any, forward_only: bool = False) -> None:
            self.n_micro_batches = len(mb_list.mbs)
            for item in mb_list:
                _, ctx = self._prepare_mb_inputs(item)
                process_output_fn(self.theta, ctx.to_dict() | {"pad_length": 0}).backward()

        def _compute_logprobs_entropy(self, logits: Any, inputs: Any, ulysses_pad_size: int = 0) -> Any:
            batch_input = self.batch_input["logprobs"].squeeze(0)
            return batch_input + MOVED + logits, torch.zeros_like(batch_input)

        def _get_vocab_min_max_logits(self, logits: Any, ulysses_pad_size: int = 0) -> Any:
            return self.batch_input["logprobs"].squeeze(0), self.batch_input["logprobs"].squeeze(0)

        def _compute_logprobs_and_loss(self, logits: Any, ctx: Any, *given: Any, **named: Any) -> Any:
            self.batch_input = ctx.mb_input
            return super()._compute_logprobs_and_loss(logits, ctx, *given, **named)

    return Engine()


def rows_of(batch: list[dict[str, Any]], advantages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the actor made of each row's sampled tokens."""
    import torch

    rows = []
    for before, after in zip(batch, advantages, strict=True):
        ids, versions = (torch.roll(before[name], shifts=-1, dims=-1)[0] for name in ("input_ids", "versions"))
        mask = after["loss_mask"][0].bool()
        rows.append(
            {
                "ids": ids[mask].tolist(),
                "advantages": after["advantages"][0][mask].tolist(),
                "logprobs": after["logprobs"][0][mask].tolist(),
                "versions": versions[mask].tolist(),
            }
        )
    return rows


def rank_of(rank: int, n_ranks: int, share: list[dict[str, Any]], given: dict[str, Any], port: int) -> dict[str, Any]:
    """One rank: advantages of its share, then AReaL's update."""
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=n_ranks)
    actor, steps = actor_of(given), []
    actor.engine = engine_of(n_ranks, steps)
    before = [{name: value.clone() for name, value in row.items()} for row in share]
    made = actor.compute_advantages(share)
    rows = rows_of(before, made)
    actor.ppo_update(made)
    torch.distributed.destroy_process_group()
    return {"rows": rows, "steps": steps}


def main(source: str, path: str, config: str) -> None:
    sys.path.insert(0, source)
    stub_missing("areal")
    import torch
    from areal.infra.controller.train_controller import TrainController

    given = json.loads(config)
    batch = torch.load(path, weights_only=True)
    if "n_ranks" not in given:
        before = [{name: value.clone() for name, value in row.items()} for row in batch]
        print(json.dumps({"rows": rows_of(before, actor_of(given).compute_advantages(batch))}))
        return

    def dealt_to(n: int) -> list[list[dict[str, Any]]]:
        controller = SimpleNamespace(parallel_strategy=SimpleNamespace(dp_size=n))
        (shares,), _, _ = TrainController._partition_inputs(controller, 1, batch)
        return shares

    try:
        refused = f"{len(dealt_to(len(batch) - 1))} shares"
    except ValueError as error:
        refused = str(error)
    shares = dealt_to(given["n_ranks"])
    engine_of(1, [])  # imports once what all ranks need
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("fork")) as processes:
        ranks = [processes.submit(rank_of, rank, len(shares), share, given, port) for rank, share in enumerate(shares)]
        print(json.dumps({"ranks": [one.result() for one in ranks], "refused": refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
