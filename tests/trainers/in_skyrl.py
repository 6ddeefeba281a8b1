"""Run by verl's interpreter, which has Ray (test_recompute.py): SkyRL's SFT data path on our files. One JSON line.

argv: folder with SkyRL's source, our files. Its own loader, collator, padding of the last batch, chunks for two ranks.
"""

from __future__ import annotations

import json
import sys
import typing
from types import SimpleNamespace
from typing import Any

import typing_extensions
from stubs import stub_missing


def main(source: str, *paths: str) -> None:
    # Pydantic refuses Python 3.11's own; SkyRL is written for 3.12.
    typing.TypedDict = typing_extensions.TypedDict
    sys.path.insert(0, source)
    stub_missing("skyrl")
    from skyrl.train.dataset.pretokenized import load_from_pretokenized
    from skyrl.train.sft_trainer import collate_sft_batch, collate_sft_examples

    def collator(given: list[Any], batch_size: int) -> Any:
        return collate_sft_batch(given, SimpleNamespace(pad_token_id=0))

    reports = []
    for path in paths:
        dataset = load_from_pretokenized(path)
        examples = [dataset[i] for i in range(len(dataset))]
        size = len(examples) + len(examples) % 2 + 2
        batch = collate_sft_examples(examples, collator, size, pad_to_batch_size=True)
        reports.append({"n": len(examples), "ranks": [rows_of(part) for part in batch.chunk(size // 2)]})
    print(json.dumps(reports))


def rows_of(part: Any) -> list[dict[str, Any]]:
    """A rank's rows. As SkyRL's model does: log-probs of the last n tokens are those at the n positions before them."""
    n, rows = part.metadata["response_length"], []
    for ids, attended, loss in zip(part["sequences"], part["attention_mask"], part["loss_mask"], strict=True):
        on, before = loss.bool(), attended.roll(1)
        before[0] = 0
        row = {"ids": ids[attended.bool()].tolist(), "sampled": ids[-n:][on].tolist()}
        rows.append(row | {"predicted": bool(before[-n:][on].all())})
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
