"""Builds ``tinker.Datum`` objects from an exported batch. It is written beside the export and needs only tinker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tinker


def datums(path: str) -> Iterator[Any]:
    """The rows of a file as datums for ``forward_backward(..., "importance_sampling")``."""
    with Path(path).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            n = len(row["target_tokens"])
            inputs = {"target_tokens": tinker.TensorData(data=row["target_tokens"], dtype="int64", shape=[n])}
            for name in ("logprobs", "advantages", "mask"):
                inputs[name] = tinker.TensorData(data=row[name], dtype="float32", shape=[n])
            yield tinker.Datum(model_input=tinker.ModelInput.from_ints(row["input_tokens"]), loss_fn_inputs=inputs)
