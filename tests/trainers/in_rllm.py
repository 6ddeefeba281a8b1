"""Run by verl's interpreter (test_recompute.py): rLLM's own code on our file. Prints one JSON line.

argv: folder with rLLM's source, our file, JSON of the algorithm's configuration; ``"backend": "verl"`` adds the batch
that rLLM's verl backend makes of the groups, with ``"pad"`` as the tokenizer's pad token (0).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stubs import stub_missing


def main(source: str, path: str, config: str) -> None:
    sys.path.insert(0, source)
    stub_missing("rllm")
    from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
    from rllm.trainer.algorithms.config import AlgorithmConfig, rLLMAdvantageEstimator
    from rllm.trainer.algorithms.transform import _build_trajectory_groups
    from rllm.types import Episode

    given = json.loads(config)
    backend, pad = given.pop("backend", None), given.pop("pad", 0)
    episodes = [Episode.from_dict(json.loads(line)) for line in Path(path).read_text().splitlines()]
    groups = _build_trajectory_groups(episodes)
    algorithm = AlgorithmConfig(estimator=rLLMAdvantageEstimator.GRPO, **given)
    collect_reward_and_advantage_from_trajectory_groups(groups, algorithm)
    rows = []
    for group in groups:
        for trajectory in group.trajectories:
            for step in trajectory.steps:
                given = step.advantage
                rows.append(
                    {
                        "group": group.group_id,
                        "ids": step.response_ids,
                        "advantages": given if isinstance(given, list) else [given] * len(step.response_ids),
                        "logprobs": step.logprobs or None,
                        "versions": [step.weight_version] * len(step.response_ids),
                        "n_context": len(step.prompt_ids),
                    }
                )
    print(json.dumps({"rows": rows, "batch": in_verl(groups, pad) if backend == "verl" else None}))


def in_verl(groups: list[Any], pad: int) -> list[dict[str, Any]]:
    """The rows of the batch that rLLM's verl backend trains on."""
    from rllm.trainer.verl.transform import transform_trajectory_groups_to_dataproto, update_dataproto_with_advantages

    engine = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=pad), processor=None)
    batch = update_dataproto_with_advantages(transform_trajectory_groups_to_dataproto(groups, engine, 32, 64), groups)
    rows = []
    for i in range(len(batch)):
        row = {name: batch.batch[name][i] for name in batch.batch.keys()}  # noqa: SIM118, a tensordict iterates over rows
        mask = row["response_mask"].bool()
        old = row.get("rollout_log_probs")
        rows.append(
            {
                "ids": row["responses"][mask].tolist(),
                "advantages": row["advantages"][mask].tolist(),
                "logprobs": None if old is None else old[mask].tolist(),
                "hidden": row["responses"][mask & ~row["attention_mask"][len(row["prompts"]) :].bool()].tolist(),
                "n_context": int(row["attention_mask"][: len(row["prompts"])].sum()),
                "trajectory": str(batch.non_tensor_batch["step_ids"][i]),
            }
        )
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
