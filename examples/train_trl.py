"""The closed loop with TRL's own ``GRPOTrainer``: its rollout function leases batches from the studio.

    python examples/train_trl.py --studio http://127.0.0.1:8100 --model MODEL_FOLDER --out RUN_FOLDER --updates 4

TRL computes advantages, loss and update. This program gives it the captured tokens, log-probs and rewards, compares
TRL's log-probs with the captured ones before each update, acknowledges the batch after it, and has the studio's engines
load the new weights. Each trajectory must be one row: its steps extend each other. It prints one line of JSON when the
first weights are in force, and one per update.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from core.errors import StudioError
from core.trainer import Batch, Comparison, Trainer, TrainingRow

WAIT_S = 600.0


class StudioBatches:
    """The batch that TRL trains on now, and the version of its weights."""

    def __init__(self, studio: Trainer, version: int) -> None:
        self.studio, self.version = studio, version
        self.batch: Batch | None = None
        self.rows: list[TrainingRow] = []
        self.comparison: Comparison | None = None

    def rollout(self, prompts: list[Any], _trainer: Any) -> dict[str, Any]:
        """TRL's rollout function: a leased batch in place of new samples; the prompts are those of the batch."""
        self.batch = self.studio.fetch(WAIT_S)
        if self.batch is None:
            raise SystemExit(f"no batch within {WAIT_S:g} s: {self.studio.missing}")
        self.rows = self.batch.rows()
        if len(self.rows) != len(prompts):
            self.batch.release("a trajectory is not one row")
            raise SystemExit(
                f"{len(self.rows)} rows for {len(prompts)} samples: a step of some trajectory does not extend the one "
                "before it, and TRL takes one row per sample"
            )
        rewards = [row.spans[-1].step["trajectory_reward"] for row in self.rows]
        return {
            "prompt_ids": [row.ids[: row.n_prompt] for row in self.rows],
            "completion_ids": [row.ids[row.n_prompt :] for row in self.rows],
            "logprobs": [[0.0 if x is None else x for x in row.logprobs[row.n_prompt :]] for row in self.rows],
            "env_mask": [row.mask[row.n_prompt :] for row in self.rows],
            "studio_reward": rewards,
        }

    def compare(self, inputs: dict[str, Any], logps: torch.Tensor) -> None:
        """Compare TRL's log-probs [B, C] with the captured ones. TRL shuffles, so samples are found by their tokens."""
        assert self.batch is not None
        by_tokens = {tuple(row.ids): i for i, row in enumerate(self.rows)}
        recomputed = [[0.0] * len(row.ids) for row in self.rows]
        for i in range(len(logps)):
            prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist()
            completion = inputs["completion_ids"][i][inputs["completion_mask"][i].bool()].tolist()
            place = by_tokens[(*prompt, *completion)]
            recomputed[place] = [0.0] * len(prompt) + logps[i, : len(completion)].tolist()
        # Trajectories with the same tokens have the same log-probs.
        recomputed = [recomputed[by_tokens[tuple(row.ids)]] for row in self.rows]
        self.comparison = self.batch.compare(self.rows, recomputed, self.version)


class StudioGRPO(GRPOTrainer):
    """``GRPOTrainer`` that shows its log-probs to the studio's guard before each update."""

    batches: StudioBatches

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        scores = super()._get_per_token_logps_and_entropies(*arguments, **named)
        self._logps = scores[0].detach()
        return scores

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._compute_loss(model, inputs)
        self.batches.compare(inputs, self._logps)
        self._last_loss = float(loss.detach())
        return loss


class Report(TrainerCallback):
    """After each update: save, acknowledge, sync."""

    def __init__(self, trainer: StudioGRPO, out: Path) -> None:
        self.trainer, self.out = trainer, out

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """TRL has taken an optimiser step."""
        batches = self.trainer.batches
        assert batches.batch is not None and batches.comparison is not None
        batches.version += 1
        folder = self.out / f"version-{batches.version:06d}"
        self.trainer.model.save_pretrained(folder)
        self.trainer.processing_class.save_pretrained(folder)
        metrics = {"loss": self.trainer._last_loss, **batches.comparison.metrics()}
        step_metrics = batches.comparison.step_metrics()
        batches.batch.ack(update=state.global_step, metrics=metrics, step_metrics=step_metrics)
        batches.studio.sync_weights(folder, batches.version)
        line = {"update": state.global_step, "version": batches.version, "batch_uid": batches.batch.uid, **metrics}
        print(json.dumps(line), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a policy through the studio with TRL.")
    add: Any = parser.add_argument
    add("--studio", required=True, help="base URL of the studio")
    add("--model", type=Path, required=True, help="transformers folder of the first weights")
    add("--out", type=Path, required=True, help="folder of the weights")
    add("--updates", type=int, default=4)
    add("--lr", type=float, default=5e-4)
    add("--channel", default="train")
    add("--groups", type=int, default=8, help="prompt groups per update")
    add("--rollouts", type=int, default=8, help="trajectories per prompt group")
    arguments = parser.parse_args(argv)
    size = arguments.groups * arguments.rollouts
    recipe = {"algorithm": "grpo", "batch_size": arguments.groups, "n_rollouts": arguments.rollouts, "max_staleness": 0}
    config = GRPOConfig(
        output_dir=str(arguments.out / "trl"), max_steps=arguments.updates, per_device_train_batch_size=size,
        num_generations=arguments.rollouts, gradient_accumulation_steps=1, steps_per_generation=1, num_iterations=1,
        learning_rate=arguments.lr, lr_scheduler_type="constant", beta=0.0, temperature=1.0, report_to=[],
        save_strategy="no", disable_tqdm=True, bf16=False, use_cpu=not torch.cuda.is_available(), logging_steps=10**6,
        max_completion_length=1 << 20, dataloader_pin_memory=False,
    )  # fmt: skip
    try:
        with Trainer(arguments.studio, "trl", channel=arguments.channel, recipe=recipe) as studio:
            studio.reclaim()
            version = studio.version or 0
            studio.sync_weights(arguments.model, version)
            print(json.dumps({"update": 0, "version": version}), flush=True)
            # The prompts are placeholders: what is trained on comes from the studio.
            trainer = StudioGRPO(
                AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
                reward_funcs=lambda studio_reward, **_: studio_reward,
                args=config,
                train_dataset=Dataset.from_dict({"prompt": ["task"] * size}),
                processing_class=AutoTokenizer.from_pretrained(arguments.model),
                rollout_func=(batches := StudioBatches(studio, version)).rollout,
            )
            trainer.batches = batches
            trainer.add_callback(Report(trainer, arguments.out.absolute()))
            trainer.train()
    except StudioError as error:
        print(json.dumps(error.as_dict()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
