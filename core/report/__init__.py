"""Bench reports: means, pass@k and pass^k with intervals clustered by task, and two runs compared."""

from __future__ import annotations

from core.report.bench import Subject, compare, report
from core.report.figures import Prices
from core.report.markdown import compare_markdown, report_markdown
from core.report.trial import Trial

__all__ = ["Prices", "Subject", "Trial", "compare", "compare_markdown", "report", "report_markdown"]
