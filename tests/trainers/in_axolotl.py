"""Run in one or two processes by test_sft_processes.py: Axolotl's own training on an exported file."""

from __future__ import annotations

import sys
from pathlib import Path


def main(model_dir: str, data: str, out: str, batch: str) -> None:
    # Imported before the stubs: transformers and trl look whether triton is there.
    import torch._dynamo  # noqa: F401
    import yaml
    from stub_packages import stub
    from transformers import Trainer  # noqa: F401
    from trl import SFTTrainer  # noqa: F401

    stub("numba", "posthog", "bitsandbytes", "triton", "wandb", "trackio", "optimum", "xformers")
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets
    from axolotl.core.trainers.base import AxolotlTrainer
    from axolotl.train import train
    from watching import Watched

    config = {
        "base_model": model_dir, "datasets": [{"path": data, "ds_type": "json", "type": None}],
        "dataset_prepared_path": f"{out}/prepared", "output_dir": f"{out}/model", "dataset_num_proc": 1,
        "num_epochs": 1, "micro_batch_size": int(batch), "gradient_accumulation_steps": 1,
        "learning_rate": 0.0, "optimizer": "adamw_torch", "lr_scheduler": "constant", "sequence_len": 4096,
        "gradient_checkpointing": False, "bf16": False, "fp16": False, "tf32": False, "flash_attention": False,
        "val_set_size": 0, "save_strategy": "no", "special_tokens": {"pad_token": "<|endoftext|>"},
    }  # fmt: skip
    path = Path(out, "axolotl.yaml")
    path.write_text(yaml.safe_dump(config))
    cfg = load_cfg(str(path))
    # With several processes it puts each model on the accelerator of the rank's number.
    cfg.device_map = {"": "cpu"}
    watched = Watched(AxolotlTrainer)
    train(cfg=cfg, dataset_meta=load_datasets(cfg=cfg))
    watched.write(out)


# Its data sets are prepared by processes that import this file again.
if __name__ == "__main__":
    main(*sys.argv[1:])
