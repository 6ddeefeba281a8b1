"""Run in one or two processes by test_trl_sft.py: TRL's SFTTrainer on an exported file. Each writes one JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


class Watched(SFTTrainer):
    """Remembers what each loss was computed of."""

    seen: list[dict[str, Any]]

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        labels, attended = inputs["labels"], inputs["attention_mask"].bool()
        rows = [
            {"ids": ids[on].tolist(), "trained": told[1:][told[1:] != -100].tolist()}
            for ids, told, on in zip(inputs["input_ids"], labels, attended, strict=True)
        ]
        found = super().compute_loss(model, inputs, *given, **named)
        loss = found[0] if isinstance(found, tuple) else found
        self.seen.append({"rows": rows, "loss": loss.item()})
        return found


def main(model_dir: str, data: str, out: str, batch: str) -> None:
    config = SFTConfig(
        output_dir=out, num_train_epochs=1, per_device_train_batch_size=int(batch), learning_rate=0.0, max_length=None,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer = Watched(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
        args=config,
        train_dataset=load_dataset("parquet", data_files=data, split="train", cache_dir=str(Path(out) / "hf")),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    trainer.seen = []
    trainer.train()
    told = {"n": trainer.accelerator.num_processes, "seen": trainer.seen}
    Path(out, f"seen-{trainer.accelerator.process_index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
