"""The registry of import formats: name -> ``Format``."""

from __future__ import annotations

from core.imports import clawgym, langfuse, litellm_log, messages, rllm, slime, steps
from core.imports.base import Format

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
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
