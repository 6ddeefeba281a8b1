"""What a trainer's loss is computed of, remembered in the process that trains and written as one JSON a rank."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any


class Watched:
    """Wraps ``compute_loss`` of a trainer's class, which is a transformers ``Trainer``."""

    def __init__(self, trainer: type) -> None:
        self.seen: list[dict[str, Any]] = []
        compute_loss = trainer.compute_loss  # type: ignore[attr-defined]

        @functools.wraps(compute_loss)
        def watched(this: Any, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            rows = []
            columns = inputs["input_ids"], inputs["labels"], inputs["attention_mask"].bool()
            for ids, labels, attended in zip(*columns, strict=True):
                ids, labels = ids[attended].tolist(), labels[attended].tolist()
                # Nothing predicts the first token, so its label is in no loss.
                at = [place for place, label in enumerate(labels) if place and label != -100]
                rows.append({"ids": ids, "at": at, "trained": [labels[place] for place in at]})
            result = compute_loss(this, model, inputs, *given, **named)
            loss = result[0] if isinstance(result, tuple) else result
            self.seen.append({"rows": rows, "loss": loss.item()})
            return result

        trainer.compute_loss = watched  # type: ignore[attr-defined]

    def write(self, out: str) -> None:
        """``seen-RANK.json`` in the folder ``out``."""
        rank, n = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
        Path(out, f"seen-{rank}.json").write_text(json.dumps({"n": n, "seen": self.seen}))
