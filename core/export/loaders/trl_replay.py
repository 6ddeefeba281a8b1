"""Replay an exported batch in TRL: ``GRPOTrainer`` trains on the captured rollouts in place of generating.

This file stands beside the export and needs only pyarrow and TRL::

    from trl import GRPOConfig, GRPOTrainer
    import trl_replay

    replay = trl_replay.Replay("trl_grpo-....parquet")
    trainer = GRPOTrainer(
        model, reward_funcs=replay.reward, rollout_func=replay.rollout, train_dataset=replay.prompts(),
        args=GRPOConfig(num_generations=replay.n_rollouts, ...),
    )
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow.parquet as pq


class Replay:
    """The rows of one file by prompt group.

    Raises:
        ValueError: groups of different sizes; TRL takes the same number of rollouts for every prompt.
    """

    def __init__(self, path: str) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in pq.read_table(path).to_pylist():
            self.rows[row["prompt_uid"]].append(row)
        sizes = {len(rows) for rows in self.rows.values()}
        if len(sizes) != 1:
            raise ValueError(f"groups of {sorted(sizes)} rows: export with n_rollouts set, one row per trajectory")
        self.n_rollouts = sizes.pop()
        self._next: dict[str, int] = defaultdict(int)

    def prompts(self) -> Any:
        """The data set to train on: one row per group, whose prompt is the group's uid."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": uid} for uid in self.rows])

    def rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """TRL's ``rollout_func``: the captured tokens of the next rollouts of each prompt."""
        chosen = []
        for uid in prompts:
            rows = self.rows[uid]
            chosen.append(rows[self._next[uid] % len(rows)])
            self._next[uid] += 1
        return {
            "prompt_ids": [row["prompt_ids"] for row in chosen],
            "completion_ids": [row["completion_ids"] for row in chosen],
            "logprobs": [row["logprobs"] for row in chosen],
            "env_mask": [row["completion_mask"] for row in chosen],
            "captured_reward": [row["reward"] for row in chosen],
        }

    @staticmethod
    def reward(completions: list[Any], captured_reward: list[float | None], **_: Any) -> list[float | None]:
        """TRL's reward function: the captured rewards. None stays None: TRL leaves such rows out."""
        return captured_reward
