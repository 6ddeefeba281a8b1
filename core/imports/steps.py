"""Imports the studio's steps: JSON lines with the fields of ``POST /api/v1/steps``, or the ``steps_parquet`` export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from core.errors import InvalidInput
from core.imports.base import ConvertedRecord, Format, ReadResult, convert_record
from core.imports.bounds import MAX_BATCH
from core.imports.files import converted

BATCH_ROWS = 64
JSON_COLUMNS = ("messages", "response_message", "tools", "sampling", "metadata")
PLAIN_COLUMNS = (
    "step_uid", "trajectory_uid", "prompt_uid", "step_index", "prompt_ids", "response_ids", "response_logprobs",
    "response_mask",
    "reward", "policy_version", "policy_version_end", "token_source", "is_last", "finish_reason",
)  # fmt: skip
NEEDED = {"step_uid", "trajectory_uid", "step_index", "response_ids", "trajectory_reward", "token_source"}


def _line(where: str, record: Mapping[str, Any]) -> ConvertedRecord:
    step = {"source": "import", **record}
    if step.get("step_uid") is None:
        # The service's default uid.
        step["step_uid"] = f"{step.get('trajectory_uid')}:{step.get('step_index')}"
    return ConvertedRecord(where, [step])


def read_lines(path: Path) -> Iterator[ReadResult]:
    """One step per line, without conversion."""
    return converted(path, _line)


def _is_step(path: Path, first: Any) -> bool:
    return isinstance(first, Mapping) and {"trajectory_uid", "step_index"} <= first.keys()


def read_parquet(path: Path) -> Iterator[ReadResult]:
    """Read rows in small batches. Uids, token ids, log-probs and rewards are taken unchanged."""
    number = 0
    with pq.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name in (*PLAIN_COLUMNS, *JSON_COLUMNS)]
        for batch in file.iter_batches(BATCH_ROWS, columns=[*columns, "trajectory_reward"]):
            if batch.nbytes > MAX_BATCH:
                raise InvalidInput(f"{BATCH_ROWS} rows have more than {MAX_BATCH >> 20} MiB")
            for row in batch.to_pylist():
                number += 1
                where = f"{path.name}:{number}"
                yield convert_record(where, row, partial(_row, where, row))


def _row(where: str, row: dict[str, Any]) -> ConvertedRecord:
    step = {name: row[name] for name in PLAIN_COLUMNS if row.get(name) is not None}
    step |= {name: orjson.loads(row[name]) for name in JSON_COLUMNS if row.get(name) is not None}
    step["source"] = "import"
    if row["token_source"] not in ("engine", "logprobs", "whitebox", "retokenized"):
        for name in ("prompt_ids", "response_ids", "response_logprobs", "response_mask"):
            step.pop(name, None)
    total = row["trajectory_reward"]
    return ConvertedRecord(where, [step], {} if total is None else {step["trajectory_uid"]: total})


def _is_parquet(path: Path, first: Any) -> bool:
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            return False
    with pq.ParquetFile(path) as file:
        return set(file.schema_arrow.names) >= NEEDED


LINES = Format("steps", "Steps (JSON lines, fields of POST /api/v1/steps)", _is_step, read_lines, own_uids=True)
PARQUET = Format("steps_parquet", "Steps (the parquet that steps_parquet exports)", _is_parquet, read_parquet)
