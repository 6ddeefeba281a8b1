"""Replay an exported batch in TRL: train on the captured rollouts in place of generating.

This file stands beside the export and needs only pyarrow and TRL::

    from trl import GRPOConfig
    import trl_replay

    replay = trl_replay.Replay("trl_grpo-....parquet")
    trainer = trl_replay.ReplayTrainer(model, replay=replay, args=GRPOConfig(num_generations=2, ...))

Each row of the file is a sample of its own, so every process of a distributed run takes its own rows, once per epoch.
Advantages are the file's, per token, and so are the old log-probs that the ratio is made of, where all are known. The
groups in which TRL would compare rewards don't matter, and neither does ``num_generations``. Where the rows don't fill
the last generation batch, rows without loss do.
"""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import RepeatSampler, pad

NOTHING = {"prompt_ids": [0], "completion_ids": [0], "completion_mask": [0], "logprobs": [0.0], "advantages": [0.0]}
"""A row that fills a batch up: none of its tokens is in the loss."""


class Replay:
    """The rows of one file.

    Attributes:
        rows: in the file's order.
        knows_logprobs: whether every token in the loss has its log-prob; else TRL takes the policy's own, a ratio of 1.
    """

    def __init__(self, path: str) -> None:
        self.rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        self.knows_logprobs = all(None not in row["logprobs"] for row in self.rows)

    def prompts(self, multiple_of: int = 1) -> Any:
        """The data set: a row per row of the file, whose prompt is its number, and -1 up to the multiple."""
        from datasets import Dataset

        numbers = [*range(len(self.rows)), *([-1] * (-len(self.rows) % multiple_of))]
        return Dataset.from_list([{"prompt": str(number)} for number in numbers])

    def row(self, prompt: str) -> dict[str, Any]:
        """The row that a prompt of the data set names."""
        return NOTHING if int(prompt) < 0 else self.rows[int(prompt)]

    def rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """TRL's ``rollout_func``: the captured tokens of these rows."""
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
        """TRL's reward function, for its log: the captured rewards."""
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
        """Every row once; TRL's own repeats each ``num_generations`` times."""
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
        """float32 [B, T] beside ``completion_ids``."""
        import torch

        values = pad([torch.tensor(row[name], dtype=torch.float32) for row in rows], padding_side="right")
        whole = torch.zeros(output["completion_ids"].shape, dtype=torch.float32)
        whole[:, : values.shape[1]] = values
        return whole.to(output["completion_ids"].device)
