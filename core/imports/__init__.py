"""Imports other tools' logs as steps. Each file in this folder is one format, selected by name or by the first record.

    report = run([Path("traces.db")], client, channel="train")

Importing a file again adds nothing, because a step's uid is a hash of its content.
"""

from __future__ import annotations

from core.imports.base import ConvertedRecord, Format, Problem
from core.imports.registry import FORMATS
from core.imports.run import Report, Sink, recognise, run

__all__ = ["FORMATS", "ConvertedRecord", "Format", "Problem", "Report", "Sink", "recognise", "run"]
