"""Run by verl's interpreter (test_recompute.py): slime's own code on our file. Prints one JSON line.

argv: folder with slime's source, our file, JSON of ``{reward_key, rewards_normalization, advantage_estimator,
global_batch_size}``. slime deals the samples to two ranks; each computes its advantages and loss. In the place of Ray's
object store the data itself is handed on; in the place of a model stands one weight θ with log π = log μ + ln 1.1 + θ.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stubs import stub_missing

MOVED = 0.0953101798  # ln 1.1
N_RANKS = 2


def loss_module(source: str) -> Any:
    """slime's losses for Megatron, one context-parallel rank, without its package's start, which patches Megatron."""
    package = types.ModuleType("slime.backends.megatron_utils")
    package.__path__ = [str(Path(source) / "slime" / "backends" / "megatron_utils")]
    sys.modules[package.__name__] = package
    from slime.backends.megatron_utils import cp_utils, loss

    loss.mpu = cp_utils.mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1,
        get_data_parallel_world_size=lambda with_context_parallel: N_RANKS,
        is_pipeline_last_stage=lambda: True,
    )
    return loss


def policy_loss(args: Any, batch: dict[str, Any], theta: Any, sum_of_sample_mean: Any) -> Any:
    """slime's policy loss of a policy that moved by ln 1.1 + θ on every token."""
    import torch
    from slime.utils.ppo_utils import compute_policy_loss

    advantages = torch.cat(batch["advantages"])
    losses, _ = compute_policy_loss(-MOVED - theta.expand(len(advantages)), advantages, 10.0, 10.0)
    return sum_of_sample_mean(losses), {}


def rank_of(loss: Any, args: Any, data: dict[str, Any], samples: list[Any]) -> dict[str, Any]:
    """What one rank makes of its part: rows, and the gradient of its steps as Megatron adds micro-batches up."""
    import torch

    loss.compute_advantages_and_returns(args, data)
    rows = []
    for i, tokens in enumerate(data["tokens"]):
        n, mask = data["response_lengths"][i], data["loss_masks"][i].bool()
        rows.append(
            {
                "ids": tokens[-n:][mask].tolist(),
                "advantages": data["advantages"][i][mask].tolist(),
                "logprobs": data["rollout_log_probs"][i][mask].tolist(),
                "n_context": len(tokens) - n,
                "rollout_id": data["rollout_ids"][i],
                "rollout_mask_sum": int(data["rollout_mask_sums"][i]),
                "raw_reward": data["local_raw_reward"][i],
                "truncated": data["truncated"][i],
                "weight_versions": samples[data["partition"][i]].weight_versions,
            }
        )
    at, gradients = 0, []
    names = ("advantages", "loss_masks", "response_lengths", "total_lengths", "rollout_mask_sums")
    for n, batch_size in zip(data["num_microbatches"], data["global_batch_sizes"], strict=True):
        theta = torch.zeros((), requires_grad=True)
        for places in data["micro_batch_indices"][at : at + n]:
            batch = {name: [data[name][i] for i in places] for name in names}
            (loss.loss_function(args, batch, n, batch_size, theta)[0] / n).backward()
        gradients.append(theta.grad.item())
        at += n
    return {"rows": rows, "gradients": gradients}


def main(source: str, path: str, flags: str) -> None:
    sys.path.insert(0, source)
    stub_missing("slime")
    from slime.observability.rollout_data_utils import load_debug_rollout_data
    from slime.ray import rollout
    from slime.utils import data as rollout_data

    args = SimpleNamespace(
        n_samples_per_prompt=2, rollout_batch_size=2, grpo_std_normalization=True, rollout_top_p=1.0,
        use_dynamic_batch_size=True, max_tokens_per_gpu=40, balance_by_flops=False, balance_data=False,
        use_rollout_logprobs=True, kl_coef=0.0, custom_advantage_function_path=None, use_opd=False,
        normalize_advantages=False, calculate_per_token_loss=False, loss_type="custom_loss",
        custom_loss_function_path="in_slime.policy_loss", recompute_loss_function=False, allgather_cp=False,
        **json.loads(flags),
    )  # fmt: skip
    kind = rollout.RolloutManager.__ray_metadata__.modified_class
    parallel = {"dp_size": N_RANKS, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    manager = SimpleNamespace(
        args=args, custom_reward_post_process_func=None, custom_convert_samples_to_train_data_func=None,
        train_parallel_config=parallel,
    )  # fmt: skip
    manager._post_process_rewards = lambda samples: kind._post_process_rewards(manager, samples)
    samples = load_debug_rollout_data(path, rollout_id=0)
    rollout.ray.put = rollout_data.ray.get = lambda held: held
    refs = kind._split_train_data_by_dp(manager, kind._convert_samples_to_train_data(manager, samples))
    loss = loss_module(source)
    parts = [rollout_data.process_rollout_data(args, refs, rank, N_RANKS) for rank in range(N_RANKS)]
    print(json.dumps({"ranks": [rank_of(loss, args, part, samples) for part in parts]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
