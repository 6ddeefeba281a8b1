"""Run in one or two processes by test_sft_processes.py: LLaMA-Factory's own training on an exported folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(model_dir: str, data: str, out: str, batch: str) -> None:
    from stub_packages import stub

    os.environ["DISABLE_VERSION_CHECK"] = "1"
    stub("torchaudio")
    from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
    from llamafactory.train.tuner import run_exp
    from watching import Watched

    watched = Watched(CustomSeq2SeqTrainer)
    arguments = {
        "stage": "sft", "do_train": True, "finetuning_type": "full", "model_name_or_path": model_dir,
        "dataset": "claw_studio", "dataset_dir": str(Path(data).parent), "template": "qwen", "mask_history": True,
        "cutoff_len": 100_000, "overwrite_cache": True, "preprocessing_num_workers": 1, "output_dir": out,
        "num_train_epochs": 1, "per_device_train_batch_size": int(batch), "learning_rate": 0.0, "report_to": "none",
        "save_strategy": "no", "use_cpu": True, "bf16": False, "fp16": False, "disable_tqdm": True,
        "disable_gradient_checkpointing": True,
    }  # fmt: skip
    run_exp(args=arguments)
    watched.write(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
