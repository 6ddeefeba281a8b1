"""Exports trainer-neutral Parquet: one row per planned step with all its fields.

Unknown is null: a step without log-probs has a null list, a token without a log-prob a null element, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from core.batch import arrays
from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Written
from core.export.parquet import write_row_groups
from core.export.reading import Row, others, parquet_rows, tokens
from core.export.sink import Sink

SCHEMA = pa.schema(
    [
        *arrays.SCHEMA,
        pa.field("policy_version_end", pa.int64()),
        pa.field("transition", pa.string()),
        pa.field("is_last", pa.bool_()),
        pa.field("finish_reason", pa.string()),
        pa.field("messages", pa.string()),
        pa.field("response_message", pa.string()),
        pa.field("tools", pa.string()),
        pa.field("sampling", pa.string()),
        pa.field("metadata", pa.string()),
    ]
)
"""The last five columns are JSON text; ``sampling`` has the sampling parameters."""

FROM_STEP = ("policy_version_end", "transition", "is_last", "finish_reason")
JSON_COLUMNS = ("messages", "response_message", "tools", "sampling", "metadata")


def _details(source: ExportSource, trajectory_uids: Sequence[str], step_uids: Sequence[str]) -> dict[str, pa.Array]:
    """Further columns of the steps, in the order of ``step_uids``."""
    wanted = set(step_uids)
    details: dict[str, tuple[Any, ...]] = {}
    for trajectory in source.trajectories(list(dict.fromkeys(trajectory_uids))):
        for step in trajectory["steps"]:
            if step["step_uid"] in wanted:
                texts = [None if step[name] is None else orjson.dumps(step[name]).decode() for name in JSON_COLUMNS]
                details[step["step_uid"]] = (*(step[name] for name in FROM_STEP), *texts)
    columns = zip(*(details[uid] for uid in step_uids), strict=True)
    return {
        name: pa.array(values, SCHEMA.field(name).type)
        for name, values in zip((*FROM_STEP, *JSON_COLUMNS), columns, strict=True)
    }


def _groups(plan: Plan, source: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    done = 0
    for table in arrays.step_tables(plan, source):
        n_prompt, n_response = (
            pc.fill_null(pc.list_value_length(table[name]), 0).to_numpy().astype(np.int64)
            for name in ("prompt_ids", "response_ids")
        )
        n_tokens = int(n_response.sum())
        columns = dict(zip(table.column_names, table.columns, strict=True))
        ones = arrays.list_column(np.ones(n_tokens, dtype=np.int8), n_response, pa.int8())
        columns["response_mask"] = pc.coalesce(columns["response_mask"].combine_chunks(), ones)
        n_loss = pc.sum(columns["response_mask"].flatten()).as_py() or 0
        columns |= _details(source, table["trajectory_uid"].to_pylist(), table["step_uid"].to_pylist())
        done += len(table)
        complete = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        yield done, complete, Written(len(table), int(n_prompt.sum()) + n_tokens, n_loss)


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, Any], progress: Progress) -> Written:
    """Write the file, row group by row group."""
    return write_row_groups(sink, SCHEMA, _groups(plan, source), len(plan.steps), progress)


SHOWN = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "token_advantages", "token_returns")


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The steps; one without token ids has its messages instead."""
    for row in parquet_rows(data):
        fields = others(row, *SHOWN, *JSON_COLUMNS)
        if row["response_ids"] is None:
            messages = [*orjson.loads(row["messages"] or "[]"), orjson.loads(row["response_message"] or "{}")]
            yield Row(messages=messages, trained=[i == len(messages) - 1 for i in range(len(messages))], fields=fields)
            continue
        before, n = [0.0] * len(row["prompt_ids"]), len(row["response_ids"])
        advantages = row["token_advantages"]
        if advantages is None and row["advantage"] is not None:
            advantages = [row["advantage"]] * n
        scores = row["response_logprobs"]
        sequence = tokens(
            row["prompt_ids"] + row["response_ids"],
            before + row["response_mask"],
            None if advantages is None else before + advantages,
            None if scores is None else before + scores,
        )
        yield Row([sequence], fields=fields)


def load_command(name: str) -> str:
    """A command that loads the file with pyarrow."""
    return f"python -c \"import pyarrow.parquet as pq; print(pq.read_table('{name}').schema)\""


EXPORTER = Exporter(
    name="steps_parquet",
    title="Steps (parquet)",
    description="Trainer-neutral: ids, masks, log-probs, rewards, advantages, messages and tools, one row per step",
    suffix=".parquet",
    write=write,
    read=read,
    load_command=load_command,
    texts=True,
    by_group=True,
)
