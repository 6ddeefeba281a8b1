"""Run in one or two processes by test_trl_sft.py: TRL's SFTTrainer on an exported file. Each writes one JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
from watching import Watched


def main(model_dir: str, data: str, out: str, batch: str) -> None:
    config = SFTConfig(
        output_dir=out, num_train_epochs=1, per_device_train_batch_size=int(batch), learning_rate=0.0, max_length=None,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, gradient_accumulation_steps=1,
    )  # fmt: skip
    watched = Watched(SFTTrainer)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
        args=config,
        train_dataset=load_dataset("parquet", data_files=data, split="train", cache_dir=str(Path(out) / "hf")),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    trainer.train()
    watched.write(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
