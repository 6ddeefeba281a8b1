"""Trainer-neutral parquet: one row per chosen step with everything a trainer may ask for.

Unknown is null: a step without log-probs has a null list, a token without one a null element, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Sink, Written
from core.export.parquet import lists, trajectory_ranges, write_row_groups
from core.tree.sequences import ragged_index

SCHEMA = pa.schema(
    {
        "step_uid": pa.string(),
        "trajectory_uid": pa.string(),
        "prompt_uid": pa.string(),
        "group": pa.int32(),
        "step_index": pa.int32(),
        "prompt_ids": pa.list_(pa.int32()),
        "response_ids": pa.list_(pa.int32()),
        "response_mask": pa.list_(pa.int8()),
        "response_logprobs": pa.list_(pa.float32()),
        "reward": pa.float64(),
        "trajectory_reward": pa.float64(),
        "advantage": pa.float64(),
        "policy_version": pa.int64(),
        "policy_version_end": pa.int64(),
        "token_source": pa.string(),
        "transition": pa.string(),
        "is_last": pa.bool_(),
        "finish_reason": pa.string(),
        "messages": pa.string(),
        "response_message": pa.string(),
        "tools": pa.string(),
        "sampling": pa.string(),
        "metadata": pa.string(),
    }
)
"""The last five are JSON text; ``sampling`` holds temperature and the like."""

FROM_PLAN = (
    "step_uid", "trajectory_uid", "prompt_uid", "group", "step_index", "reward", "trajectory_reward", "advantage",
    "policy_version", "token_source",
)  # fmt: skip
FROM_STEP = ("policy_version_end", "transition", "is_last", "finish_reason")
JSON_COLUMNS = ("messages", "response_message", "tools", "sampling", "metadata")


def _details(pool: ExportSource, trajectory_uids: Sequence[str], step_uids: Sequence[str]) -> dict[str, pa.Array]:
    """What only the whole step knows, in the order of ``step_uids``; one trajectory's messages at a time."""
    wanted = set(step_uids)
    found: dict[str, tuple[Any, ...]] = {}
    for uid in dict.fromkeys(trajectory_uids):
        for step in pool.trajectory(uid)["steps"]:
            if step["step_uid"] in wanted:
                texts = [None if step[name] is None else orjson.dumps(step[name]).decode() for name in JSON_COLUMNS]
                found[step["step_uid"]] = (*(step[name] for name in FROM_STEP), *texts)
    columns = zip(*(found[uid] for uid in step_uids), strict=True)
    return {
        name: pa.array(values, SCHEMA.field(name).type)
        for name, values in zip((*FROM_STEP, *JSON_COLUMNS), columns, strict=True)
    }


def _groups(plan: Plan, pool: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    for low, high in trajectory_ranges(plan):
        rows = plan.steps.slice(low, high - low)
        uids = plan.step_uids[low:high]
        sequences = pool.sequences(uids)
        n_prompt, n_response = sequences.n_prompt, sequences.n_response
        starts = sequences.offsets[:-1]
        response = sequences.response_index()
        scores = (
            np.full(len(response), np.nan, dtype=np.float32)
            if sequences.logprobs is None
            else sequences.logprobs[response]
        )
        known = np.bincount(np.repeat(np.arange(len(uids)), n_response), ~np.isnan(scores), minlength=len(uids)) > 0
        columns: dict[str, Any] = {name: rows[name].cast(SCHEMA.field(name).type) for name in FROM_PLAN}
        columns["prompt_ids"] = lists(sequences.ids[ragged_index(starts, n_prompt)], n_prompt, pa.int32())
        columns["response_ids"] = lists(sequences.ids[response], n_response, pa.int32())
        columns["response_mask"] = lists(np.ones(len(response), dtype=np.int8), n_response, pa.int8())
        columns["response_logprobs"] = lists(scores, n_response, pa.float32(), known=known)
        columns |= _details(pool, rows["trajectory_uid"].to_pylist(), uids)
        table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        yield high, table, Written(len(uids), sequences.n_tokens, len(response))


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, Any], progress: Progress) -> Written:
    """Stream the rows."""
    return write_row_groups(sink, SCHEMA, _groups(plan, pool), len(plan.steps), progress)


def load_command(name: str) -> str:
    """Loads the file with pyarrow."""
    return f"python -c \"import pyarrow.parquet as pq; print(pq.read_table('{name}').schema)\""


EXPORTER = Exporter(
    name="steps_parquet",
    title="Steps (parquet)",
    description="Trainer-neutral: ids, masks, log-probs, rewards, advantages, messages and tools, one row per step",
    suffix=".parquet",
    write=write,
    load_command=load_command,
)
