"""DPO and KTO trainers for exact token ids: TRL's trainers without tokenization and without loss on tool results.

This file is written beside the export and needs only TRL::

    from datasets import load_dataset
    from trl import DPOConfig
    import trl_exact

    rows = load_dataset("parquet", data_files="trl_dpo-....parquet", split="train")
    trainer = trl_exact.ExactDPOTrainer(model, args=DPOConfig(max_length=None, ...), train_dataset=rows)
"""

from __future__ import annotations

from typing import Any

from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer


class _Masking:
    """Applies TRL's collator, then sets ``completion_mask`` to 1 on sampled tokens only.

    Args:
        inner: TRL's collator.
        parts: prefix of the batch's fields -> columns of ids and masks, in the order of the batch's rows.
    """

    def __init__(self, inner: Any, parts: dict[str, list[tuple[str, str]]]) -> None:
        self.inner = inner
        self.parts = parts

    def __call__(self, examples: list[dict[str, Any]]) -> Any:
        batch = self.inner(examples)
        for prefix, columns in self.parts.items():
            if columns[0][0] in examples[0]:
                self._mask(batch[f"{prefix}completion_mask"], examples, columns)
        return batch

    @staticmethod
    def _mask(tokenized: Any, examples: list[dict[str, Any]], columns: list[tuple[str, str]]) -> None:
        import torch

        rows = [(example["prompt_ids"], example[ids], example[mask]) for ids, mask in columns for example in examples]
        for at, (prompt, answer, mask) in zip(tokenized, rows, strict=True):
            end = len(prompt) + len(answer)
            if end > len(at):
                raise ValueError(f"a row of {end} tokens would be cut: set max_length=None")
            at[len(prompt) : end] = torch.tensor(mask, dtype=at.dtype)


class ExactDPOTrainer(DPOTrainer):
    """``DPOTrainer`` on ``prompt_ids``, ``chosen_ids``, ``rejected_ids`` and the masks of the last two."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.args.remove_unused_columns = False
        parts = {"": [("chosen_ids", "chosen_mask"), ("rejected_ids", "rejected_mask")]}
        self.data_collator = _Masking(self.data_collator, parts)  # type: ignore[has-type]

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


class ExactKTOTrainer(KTOTrainer):
    """``KTOTrainer`` on ``prompt_ids``, ``completion_ids``, ``completion_mask`` and ``label``."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.args.remove_unused_columns = False
        parts = {"": [("completion_ids", "completion_mask")], "KL_": [("KL_completion_ids", "KL_completion_mask")]}
        self.data_collator = _Masking(self.data_collator, parts)  # type: ignore[has-type]

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *_: Any) -> Any:
        """Pair prompts and answers for the KL term as TRL does: answers are rotated by one within each batch."""
        if not self.calculate_KL:
            return dataset

        def turned(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {
                f"KL_{name}": [batch[name][-1], *batch[name][:-1]] for name in ("completion_ids", "completion_mask")
            }

        return dataset.map(turned, batched=True, batch_size=args.per_device_train_batch_size)
