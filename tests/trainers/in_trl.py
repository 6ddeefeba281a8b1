"""Run in one or two processes by test_trl_replay.py: TRL's GRPOTrainer on an exported batch. Each writes one JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig


def main(model_dir: str, data: str, out: str, batch: str) -> None:
    sys.path.insert(0, str(Path(data).parent))
    import trl_replay

    seen: list[dict] = []

    class Watched(trl_replay.ReplayTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            for i, at in enumerate(mask):
                if at.any():
                    row = {name: inputs[name][i][at].tolist() for name in ("completion_ids", "advantages")}
                    seen.append(row | {"logprobs": inputs["old_per_token_logps"][i][at].tolist()})
            seen.append({"loss": loss.item()})
            return loss

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    config = GRPOConfig(
        output_dir=out, num_train_epochs=1, per_device_train_batch_size=int(batch), num_generations=2, beta=0.0,
        learning_rate=0.0, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, max_completion_length=64, gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer = Watched(
        model,
        replay=trl_replay.Replay(data),
        args=config,
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    trainer.train()
    rank = trainer.accelerator.process_index
    Path(out, f"seen-{rank}.json").write_text(json.dumps({"n": trainer.accelerator.num_processes, "seen": seen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
