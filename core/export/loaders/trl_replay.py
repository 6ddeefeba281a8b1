"""Replays an exported batch in TRL: trains on captured rollouts instead of generating.

This file is written beside the export and needs only pyarrow and TRL::

    from trl import GRPOConfig
    import trl_replay

    replay = trl_replay.Replay("trl_grpo-....parquet")
    trainer = trl_replay.ReplayTrainer(model, replay=replay, args=GRPOConfig(num_generations=2, ...))

Each row of the file is a separate sample. In a distributed run, every process takes different rows, once per epoch.
Advantages per token come from the file. Old log-probs for the ratio do too, if all are known. TRL's reward groups and
``num_generations`` have no effect. The last generation batch is filled with rows without loss.
"""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import RepeatSampler, pad

EMPTY_ROW = {"prompt_ids": [0], "completion_ids": [0], "completion_mask": [0], "logprobs": [0.0], "advantages": [0.0]}
"""A row to fill batches: none of its tokens is in the loss."""


class Replay:
    """The rows of one file.

    Attributes:
        rows: in the file's order.
        knows_logprobs: whether all tokens in the loss have log-probs. If not, TRL uses the policy's: all ratios are 1.
    """

    def __init__(self, path: str) -> None:
        self.rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        self.knows_logprobs = all(None not in row["logprobs"] for row in self.rows)

    def prompts(self, multiple_of: int = 1) -> Any:
        """The data set: each prompt is the number of a row of the file; -1 fills up to ``multiple_of``."""
        from datasets import Dataset

        numbers = [*range(len(self.rows)), *([-1] * (-len(self.rows) % multiple_of))]
        return Dataset.from_list([{"prompt": str(number)} for number in numbers])

    def row(self, prompt: str) -> dict[str, Any]:
        """The row for a prompt of the data set."""
        return EMPTY_ROW if int(prompt) < 0 else self.rows[int(prompt)]

    def rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """TRL's ``rollout_func``: returns the captured tokens of these rows."""
        chosen = [self.row(prompt) for prompt in prompts]
        return {
            "prompt_ids": [row["prompt_ids"] for row in chosen],
            "completion_ids": [row["completion_ids"] for row in chosen],
            "logprobs": [row["logprobs"] for row in chosen],
            "env_mask": [row["completion_mask"] for row in chosen],
            "captured_reward": [row.get("reward") for row in chosen],
        }

    @staticmethod
    def reward(completions: list[Any], captured_reward: list[float | None], **_: Any) -> list[float | None]:
        """TRL's reward function: returns the captured rewards, for the log only."""
        return captured_reward


class ReplayTrainer(GRPOTrainer):
    """``GRPOTrainer`` on the rows of a file, with the file's advantages and log-probs."""

    def __init__(self, model: Any, *, replay: Replay, args: Any, **more: Any) -> None:
        self.replay = replay
        super().__init__(
            model,
            reward_funcs=replay.reward,
            rollout_func=replay.rollout,
            train_dataset=replay.prompts(args.generation_batch_size),
            args=args,
            **more,
        )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """A sampler that takes every row once; TRL's repeats each ``num_generations`` times."""
        return RepeatSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=1,
            batch_size=self.args.generation_batch_size,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=bool(self.shuffle_dataset),
            seed=self.args.seed,
        )

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        rows = [self.replay.row(example["prompt"]) for example in inputs]
        output["advantages"] = self._padded(rows, "advantages", output)
        if self.replay.knows_logprobs:
            output["old_per_token_logps"] = self._padded(rows, "logprobs", output)
        return output

    def _padded(self, rows: list[dict[str, Any]], name: str, output: Any) -> Any:
        """A column of the rows as float32 [B, T], padded to the shape of ``completion_ids``."""
        import torch

        values = pad([torch.tensor(row[name], dtype=torch.float32) for row in rows], padding_side="right")
        padded = torch.zeros(output["completion_ids"].shape, dtype=torch.float32)
        padded[:, : values.shape[1]] = values
        return padded.to(output["completion_ids"].device)
