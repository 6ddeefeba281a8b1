"""Run by verl's own interpreter (test_verl.py): replay an exported batch as the trainer would. Prints one JSON line."""

from __future__ import annotations

import json
import sys

import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.skip.rollout_skip import RolloutSkip


def main(dump_dir: str, config: str) -> None:
    settings = OmegaConf.create(json.loads(config))
    local = OmegaConf.create({"enable": True, "action": "cache", "steps": [1], "dump_dir": dump_dir})
    skip = RolloutSkip(local, settings)
    assert skip.meet_precondition(1, None), "RolloutSkip does not find the file"
    data = skip.warp_function(1, None)
    batch, beside = data.batch, data.non_tensor_batch
    assert len(data) == batch["prompts"].shape[0]
    for name, tensor in batch.items():
        wanted = torch.float32 if tensor.is_floating_point() else torch.int64
        assert tensor.dtype == wanted, (name, tensor.dtype)
    again = data.union(data.select(batch_keys=["responses"]))
    assert len(again.chunk(2)) == 2
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=batch["rm_scores"],
        response_mask=batch["response_mask"],
        index=beside["uid"],
        norm_adv_by_std_in_grpo=True,
    )
    found = {
        "meta": data.meta_info,
        "rows": [
            {
                "uid": beside["uid"][i],
                "trajectory_uid": beside["trajectory_uids"][i],
                "step_index": int(beside["step_indices"][i]),
                "n_turns": int(beside["__num_turns__"][i]),
                "prompt": row["prompts"][row["attention_mask"][: row["prompts"].shape[0]].bool()].tolist(),
                "response": row["responses"][row["attention_mask"][row["prompts"].shape[0] :].bool()].tolist(),
                "sampled": row["responses"][row["response_mask"].bool()].tolist(),
                "logprobs": row["rollout_log_probs"][row["response_mask"].bool()].tolist(),
                "positions": row["position_ids"][row["attention_mask"].bool()].tolist(),
                "score": row["rm_scores"].sum().item(),
                "advantage": advantages[i][row["response_mask"].bool()].tolist(),
                "ours": row["advantages"][row["response_mask"].bool()].tolist(),
            }
            for i, row in enumerate(batch)
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
