"""Other people's logs as steps: one file per format, found by name in ``FORMATS`` or recognised by its first record.

    report = run([Path("traces.db")], client, channel="train")

Importing twice adds nothing: a step's uid follows from its content.
"""

from __future__ import annotations

from core.imports import clawgym, langfuse, litellm_log, messages, rllm, slime, steps
from core.imports.base import Format, Problem, Taken
from core.imports.run import Report, Sink, recognise, run

FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        steps.LINES,
        steps.PARQUET,
        messages.FORMAT,
        clawgym.FORMAT,
        slime.FORMAT,
        rllm.FORMAT,
        litellm_log.FORMAT,
        langfuse.FORMAT,
    )
}

__all__ = ["FORMATS", "Format", "Problem", "Report", "Sink", "Taken", "recognise", "run"]
