"""Synthesis: task packs written by models, with checkers that are shown to hold, by both routes of ClawGym."""

from __future__ import annotations

from core.synthesis.pack import Choice, filtered, pack_of
from core.synthesis.progress import SynthesisProgress, progress
from core.synthesis.settings import ROUTES, SynthesisSettings
from core.synthesis.store import SynthesisRun, SynthesisStore
from core.synthesis.work import FINISHED, work

__all__ = [
    "FINISHED",
    "ROUTES",
    "Choice",
    "SynthesisProgress",
    "SynthesisRun",
    "SynthesisSettings",
    "SynthesisStore",
    "filtered",
    "pack_of",
    "progress",
    "work",
]
