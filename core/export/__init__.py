"""Export formats: one per file, registered by name in ``EXPORTERS``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export import (
    areal,
    axolotl,
    clawgym_sft,
    dataset,
    group_statistics,
    group_trees,
    llama_factory,
    openai_messages,
    openrlhf,
    packed_tree,
    prime_rl,
    rllm,
    skyrl_sft,
    slime,
    steps_parquet,
    tinker,
    trl_grpo,
    trl_pairs,
    trl_sft,
    verl,
)
from core.export.base import Exporter, ExportPool, ExportResult, Progress, estimate_bytes, run_export

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        trl_sft.EXPORTER,
        trl_grpo.EXPORTER,
        trl_pairs.DPO,
        trl_pairs.KTO,
        verl.EXPORTER,
        slime.EXPORTER,
        prime_rl.EXPORTER,
        areal.EXPORTER,
        openrlhf.EXPORTER,
        rllm.EXPORTER,
        tinker.EXPORTER,
        skyrl_sft.EXPORTER,
        clawgym_sft.EXPORTER,
        axolotl.EXPORTER,
        llama_factory.EXPORTER,
        openai_messages.EXPORTER,
        packed_tree.EXPORTER,
        group_trees.EXPORTER,
        group_statistics.EXPORTER,
        steps_parquet.EXPORTER,
    )
}

__all__ = ["EXPORTERS", "ExportResult", "Exporter", "estimate_bytes", "export"]


def export(
    plan: Plan,
    pool: ExportPool,
    format_name: str,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
    options: Mapping[str, Any] | None = None,
    **named: Any,
) -> ExportResult:
    """Write a plan to a file, and its manifest; or to a dataset of steps (``core.export.dataset``).

    Args:
        plan: the plan to write.
        pool: source of tokens and messages.
        format_name: key of ``EXPORTERS``, or ``steps_dataset``.
        out_dir: folder; created if missing.
        progress: called with (steps written, total steps); raising from it cancels the export.
        clock: time for the manifest.
        options: the format's options by name; unknown ones are refused.
        named: further options as keyword arguments.

    Raises:
        InvalidInput: the format or an option is unknown, the plan is empty, or the folder can't be written.
    """
    chosen = {**(options or {}), **named}
    if format_name == dataset.NAME:
        return dataset.write_dataset(plan, pool, out_dir, progress=progress, clock=clock, options=chosen)
    if format_name not in EXPORTERS:
        known = ", ".join([*EXPORTERS, dataset.NAME])
        raise InvalidInput(f"no export format {format_name!r}", field="format", hint=f"one of {known}")
    return run_export(EXPORTERS[format_name], plan, pool, out_dir, progress=progress, clock=clock, options=chosen)
