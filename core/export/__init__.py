"""Exports: one format per file, registered by name in a dict."""

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
        axolotl.EXPORTER,
        llama_factory.EXPORTER,
        openai_messages.EXPORTER,
        packed_tree.EXPORTER,
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
    """Write a plan's file and its manifest.

    Args:
        plan: what to write.
        pool: tokens and messages are read from it.
        format_name: key of ``EXPORTERS``.
        out_dir: folder, made when missing.
        progress: called with (steps written, steps in all); raising cancels.
        clock: time written into the manifest.
        options: of the format, by name: what a caller named, which need not be a format's at all.
        named: the same where the code names them.

    Raises:
        InvalidInput: an unknown format or option, an empty plan, an unwritable folder.
    """
    if format_name not in EXPORTERS:
        known = ", ".join(EXPORTERS)
        raise InvalidInput(f"no export format {format_name!r}", field="format", hint=f"one of {known}")
    chosen = {**(options or {}), **named}
    return run_export(EXPORTERS[format_name], plan, pool, out_dir, progress=progress, clock=clock, options=chosen)
