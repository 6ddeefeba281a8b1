"""Run by verl's own interpreter: replay an exported batch as its trainer, Agent-R1's or StepPO's would. One JSON line.

argv: ``verl``, folder of dumps, JSON of the trainer's settings with the estimator's name; or ``descendant``, our file,
JSON of ``{source, function, options}``: the file of estimators and what to call; ``values``: step uid -> a critic's
value before each token; ``gamma``: of the returns that GiGPO compares.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import uuid

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.protocol import pad_dataproto_to_divisor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.reward import extract_reward
from verl.utils.skip.rollout_skip import RolloutSkip


def in_verl(dump_dir: str, config: str) -> None:
    given = json.loads(config)
    settings = OmegaConf.create(given)
    local = OmegaConf.create({"enable": True, "action": "cache", "steps": [1], "dump_dir": dump_dir})
    skip = RolloutSkip(local, settings)
    assert skip.meet_precondition(1, None), "RolloutSkip does not find the file"
    data = skip.warp_function(1, None)
    for name, tensor in data.batch.items():
        wanted = torch.float32 if tensor.is_floating_point() else torch.int64
        assert tensor.dtype == wanted, (name, tensor.dtype)
    data.meta_info.pop("timing")
    # As RayPPOTrainer.fit does: prompts with a uid each, repeated n times, united with what the rollout gave.
    g, n = given["data"]["train_batch_size"], given["actor_rollout_ref"]["rollout"]["n"]
    batch = DataProto.from_dict(
        tensors={"dummy_tensor": torch.zeros(g, 1)},
        non_tensors={"uid": np.array([str(uuid.uuid4()) for _ in range(g)], dtype=object)},
    )
    ours = data.batch.pop("advantages")
    batch = batch.repeat(repeat_times=n, interleave=True).union(data)
    assert not any("image_grid_thw" in one for one in batch.non_tensor_batch["multi_modal_inputs"])
    batch.batch["token_level_scores"], _ = extract_reward(batch)
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    batch = compute_advantage(batch, adv_estimator=given["estimator"], num_repeat=n, config=AlgoConfig())
    tell(batch, ours)


def in_descendant(path: str, config: str) -> None:
    given = json.loads(config)
    spec = importlib.util.spec_from_file_location("theirs", given["source"])
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    data = DataProto.load_from_disk(path)
    mask = data.batch["response_mask"]
    values = torch.zeros(mask.shape)
    for i, uid in enumerate(data.non_tensor_batch["step_uids"] if "values" in given else ()):
        values[i, mask[i].bool()] = torch.tensor(given["values"][uid])
    known = {
        "token_level_rewards": data.batch["rm_scores"],
        "response_mask": mask,
        "index": data.non_tensor_batch["uid"],
        "trajectory_uids": data.non_tensor_batch["trajectory_uids"],
        "step_indices": data.non_tensor_batch["step_indices"],
        "values": values,
    }
    if "anchor_obs" in data.non_tensor_batch:
        known["anchor_obs"] = data.non_tensor_batch["anchor_obs"]
        known["step_rewards"] = theirs.compute_step_discounted_returns(
            data.batch["rm_scores"], mask, known["trajectory_uids"], known["step_indices"], given["gamma"]
        )
    function = getattr(theirs, given["function"])
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    named = {name: known[name] for name in names if name in known}
    data.batch["advantages"], _ = function(**named, **given["options"])
    tell(data, data.batch["advantages"])


def tell(batch: DataProto, ours: torch.Tensor) -> None:
    """Advantages and losses of each row, and which rows two ranks would train on."""
    rows = []
    beside = batch.non_tensor_batch
    for i in range(len(batch)):
        row = {name: batch.batch[name][i] for name in batch.batch.keys()}  # noqa: SIM118, a tensordict iterates over rows
        mask, p = row["response_mask"].bool(), row["prompts"].shape[0]
        old = row.get("rollout_log_probs")
        rows.append(
            {
                "ids": row["responses"][mask].tolist(),
                "advantages": row["advantages"][mask].tolist(),
                "ours": ours[i][mask].tolist(),
                "logprobs": None if old is None else old[mask].tolist(),
                "prompt": row["prompts"][row["attention_mask"][:p].bool()].tolist(),
                "response": row["responses"][row["attention_mask"][p:].bool()].tolist(),
                "positions": row["position_ids"][row["attention_mask"].bool()].tolist(),
                "group": beside["prompt_uids"][i],
                "trajectory": beside["trajectory_uids"][i],
                "n_turns": int(beside["__num_turns__"][i]),
                "score": row["rm_scores"].sum().item(),
            }
        )
    loss = None
    if "rollout_log_probs" in batch.batch:
        config = OmegaConf.create({
            "clip_ratio": 10.0, "clip_ratio_low": 10.0, "clip_ratio_high": 10.0, "clip_ratio_c": 99.0,
            "global_batch_info": {}, "loss_scale_factor": None,
        })  # fmt: skip
        old = batch.batch["rollout_log_probs"]
        loss = compute_policy_loss_vanilla(
            old, old + float(np.log(1.1)), batch.batch["advantages"], batch.batch["response_mask"], "token-mean", config
        )[0].item()
    batch.batch["row"] = torch.arange(len(batch))
    padded, n_pad = pad_dataproto_to_divisor(batch, 2)
    ranks = [part.batch["row"].tolist() for part in padded.chunk(2)]
    meta = {name: value for name, value in batch.meta_info.items() if name == "plan"}
    print(json.dumps({"rows": rows, "loss": loss, "ranks": ranks, "n_pad": n_pad, "meta": meta}))


if __name__ == "__main__":
    {"verl": in_verl, "descendant": in_descendant}[sys.argv[1]](*sys.argv[2:])
