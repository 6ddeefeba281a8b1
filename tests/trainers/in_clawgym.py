"""Run by test_clawgym.py: ClawGym's own loaders on our files. Prints one JSON line.

argv: ``sft``, its ``sft_dataset.py``, the tokenizer's folder, JSON of our files with their max_len; or ``slime``, the
folder of its fork, our file, JSON of its settings.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace
from typing import Any


def sft(program: str, model: str, files: str) -> list[list[dict[str, Any]]]:
    """Ids and mask of every line of each file, by the dataset class with ``multiturn=True``, as its training has it."""
    from stub_packages import stub

    stub("ray", "vllm", "pylatexenc", "deepspeed", "flash_attn", "peft", "torchdata", "ring_flash_attn")

    spec = importlib.util.spec_from_file_location("sft_dataset", program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [_rows(module, model, path, max_len) for path, max_len in json.loads(files)]


def _rows(module: Any, model: str, path: str, max_len: int) -> list[dict[str, Any]]:
    from datasets import load_dataset
    from transformers import AutoTokenizer

    lines = load_dataset("json", data_files=path, split="train")
    strategy = SimpleNamespace(args=SimpleNamespace(input_key="messages", output_key=None))
    data = module.SFTDataset(lines, AutoTokenizer.from_pretrained(model), max_len, strategy, multiturn=True)
    rows = []
    for i in range(len(data)):
        ids, attention, mask = data[i]
        assert attention.all()
        rows.append({"ids": ids[0].tolist(), "mask": mask[0].tolist()})
    ids, attention, masks = data.collate_fn([data[i] for i in range(len(data))])
    assert ids.shape == attention.shape == masks.shape
    return rows


def slime(source: str, path: str, flags: str) -> dict[str, Any]:
    """What the fork's rollout manager makes of the samples: its advantages by row."""
    sys.path.insert(0, source)
    from stubs import stub_missing

    stub_missing("slime")
    import torch
    from slime.ray import rollout

    args = SimpleNamespace(
        load_debug_rollout_data=path, load_debug_rollout_data_subsample=None, grpo_std_normalization=True,
        n_samples_per_prompt=2, rollout_batch_size=2, **json.loads(flags),
    )  # fmt: skip
    kind = rollout.RolloutManager.__ray_metadata__.modified_class
    manager = SimpleNamespace(
        args=args, custom_reward_post_process_func=None, custom_convert_samples_to_train_data_func=None
    )
    for name in ("_post_process_rewards", "_drop_constant_reward_groups"):
        setattr(manager, name, getattr(kind, name).__get__(manager))
    samples, _ = kind._get_rollout_data(manager, 0)
    data = kind._convert_samples_to_train_data(manager, samples)
    assert torch.is_tensor(torch.tensor(data["rewards"]))
    names = ("tokens", "response_lengths", "rewards", "loss_masks", "rollout_log_probs", "sample_indices", "truncated")
    return {name: data[name] for name in names if name in data} | {"group": data["group_indices"]}


if __name__ == "__main__":
    made = {"sft": sft, "slime": slime}[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(made))
