"""Writes a plan as a dataset of steps: Parquet files that each hold whole prompt groups.

``steps-HASH/`` has::

    steps/part-00000.parquet    one row per step, the columns and bytes of the format steps_parquet
    plan/steps.parquet          the plan's columns without tokens; row group i belongs to part i
    plan/trajectories.parquet   the plan's trajectories; row group i belongs to part i
    dataset.json                the plan's head, and the rows, bytes and SHA-256 of each part

A group is never split over files, so a job that works on groups reads files and shuffles nothing. A part begins where a
row group of an export begins: what is written of the parts, one after another, is what is written of the plan
(``core.export.joining``). ``core.export.parts`` reads it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from core.batch.arrays import group_ends, trajectory_ranges
from core.batch.layout import CHUNK_TOKENS
from core.batch.plan import Plan
from core.durable import sync_folder
from core.errors import InvalidInput
from core.export import steps_parquet
from core.export.base import (
    ExportPool,
    ExportResult,
    ExportSource,
    Progress,
    atomic,
    checked_source,
    naming,
    no_progress,
    plan_head,
    source_of,
    versions,
)
from core.export.sink import Sink

NAME = "steps_dataset"
HEAD = "dataset.json"
LAYOUT_VERSION = 1
STEPS, TRAJECTORIES = "plan/steps.parquet", "plan/trajectories.parquet"
CREDIT = {"finish_reason": pa.string(), "temperature": pa.float64(), "tokenizer_hash": pa.string()}
"""Producers' fields that exporters read of steps, as columns of ``plan/steps.parquet`` with the prefix ``credit_``."""


def part_name(number: int) -> str:
    """The file of a part, in the dataset's folder."""
    return f"steps/part-{number:05d}.parquet"


def part_borders(plan: Plan, part_tokens: int) -> list[int]:
    """Numbers of trajectories where parts begin, then the number of all: ends of groups that are ends of row groups.

    Args:
        plan: the plan.
        part_tokens: tokens after which a part ends at the next border.
    """
    ends = np.cumsum(plan.trajectories["n_steps"].to_numpy().astype(np.int64))
    groups = group_ends(plan)
    row_groups = np.array([high for _, high in trajectory_ranges(plan)], dtype=np.int64)
    possible = groups[np.isin(ends[groups - 1], row_groups)]
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(plan.lengths)])
    borders, begun = [0], 0
    for border in possible.tolist():
        n_tokens = int(total[ends[border - 1]])
        if n_tokens - begun >= part_tokens or border == len(ends):
            borders.append(border)
            begun = n_tokens
    return borders


def part_of(plan: Plan, low: int, high: int) -> Plan:
    """The trajectories ``[low, high)`` of a plan, without pairs."""
    return replace(plan.part(range(low, high)), first_trajectory=low)


def write_dataset(
    plan: Plan,
    pool: ExportPool,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
    options: Mapping[str, Any] | None = None,
) -> ExportResult:
    """Write a plan as a dataset of steps. An existing complete dataset of the plan is returned.

    Args:
        plan: the plan to write.
        pool: source of tokens and messages.
        out_dir: the dataset's folder is made in it.
        progress: called with (steps written, total steps); raising from it cancels the export.
        clock: time for the head.
        options: ``part_tokens``: tokens after which a file ends at the next group; 16 million by default.

    Raises:
        InvalidInput: the plan is empty, an option is invalid, or the folder can't be written.
    """
    part_tokens = _part_tokens(options or {})
    source = source_of(plan, pool)
    reading = checked_source(steps_parquet.EXPORTER, plan, pool)
    folder = out_dir / f"steps-{plan.hash[:12]}-{part_tokens}"
    head_path = folder / HEAD
    if head_path.exists():
        head = orjson.loads(head_path.read_bytes())
        return ExportResult(folder, head_path, head["n_rows"], head["n_tokens"], head)
    with naming("make", out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
    with naming("write to", out_dir), _new_folder(folder) as temporary:
        parts = _write_parts(plan, reading, temporary, part_tokens, progress or no_progress)
        head = {
            "layout_version": LAYOUT_VERSION,
            "format": NAME,
            "options": {"part_tokens": part_tokens},
            "n_rows": len(plan.steps),
            "n_tokens": sum(part["n_tokens"] for part in parts),
            "n_loss_tokens": sum(part["n_loss_tokens"] for part in parts),
            "level": plan.level,
            "manifest": plan_head(plan, source),
            "parts": parts,
            "versions": versions(),
            "created_at": datetime.fromtimestamp(clock(), UTC).isoformat(),
        }
        with atomic(temporary / HEAD) as file:
            file.write(orjson.dumps(head, option=orjson.OPT_INDENT_2, default=str))
    return ExportResult(folder, head_path, head["n_rows"], head["n_tokens"], head)


def _part_tokens(options: Mapping[str, Any]) -> int:
    for name in options:
        if name != "part_tokens":
            raise InvalidInput(f"{NAME} has no option {name!r}", field=f"options.{name}", hint="options: part_tokens")
    given = str(options.get("part_tokens", CHUNK_TOKENS))
    if not given.isdecimal() or not int(given):
        raise InvalidInput(
            f"part_tokens is {given!r}",
            field="options.part_tokens",
            hint=f"tokens of a file, at least 1: {CHUNK_TOKENS}",
        )
    return int(given)


def _write_parts(
    plan: Plan, source: ExportSource, folder: Path, part_tokens: int, progress: Progress
) -> list[dict[str, Any]]:
    """Write the files of all parts; the parts' entries of the head."""
    (folder / "steps").mkdir()
    (folder / "plan").mkdir()
    borders = part_borders(plan, part_tokens)
    parts: list[dict[str, Any]] = []
    done = 0
    with _tables(folder / STEPS) as write_steps, _tables(folder / TRAJECTORIES) as write_trajectories:
        for number, (low, high) in enumerate(pairwise(borders)):
            part = part_of(plan, low, high)
            report = partial(_report, progress, done, len(plan.steps))
            with atomic(folder / part_name(number)) as file, Sink(file) as sink:
                written = steps_parquet.EXPORTER.write(part, source, sink, {}, report)
                sha256, n_bytes = sink.sha256, sink.n_bytes
            write_steps(_with_credit(part, source))
            write_trajectories(part.trajectories)
            done += len(part.steps)
            parts.append(
                {
                    "file": part_name(number),
                    "sha256": sha256,
                    "n_bytes": n_bytes,
                    "n_rows": written.n_rows,
                    "n_tokens": written.n_tokens,
                    "n_loss_tokens": written.n_loss_tokens,
                    "n_trajectories": high - low,
                    "n_groups": len(group_ends(part)),
                }
            )
    return parts


def _report(progress: Progress, before: int, total: int, n_done: int, _: int) -> None:
    """Progress of a part as progress of the plan."""
    progress(before + n_done, total)


def _with_credit(part: Plan, source: ExportSource) -> pa.Table:
    """The plan's columns of a part, and those of ``CREDIT``."""
    fields = source.credit_fields(part.steps["step_uid"].combine_chunks(), list(CREDIT))
    steps = part.steps
    for name, kind in CREDIT.items():
        steps = steps.append_column(f"credit_{name}", fields[name].cast(kind))
    return steps


@contextmanager
def _tables(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """A function that writes a table as one row group of the file."""
    writers: list[pq.ParquetWriter] = []

    def write(table: pa.Table) -> None:
        if not writers:
            writers.append(pq.ParquetWriter(file, table.schema, compression="zstd"))
        writers[0].write_table(table, row_group_size=max(1, len(table)))

    with atomic(path) as file:
        yield write
        for writer in writers:
            writer.close()


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder.parent)
