"""Freezing a dataset version as a background job, with its progress and a cancel button."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from core.batch.redact import Progress
from studio import kit
from studio.kit.jobs import Cancelled, Job

SHORT_S = 0.5
"""Starting a job waits for so long: a small version is frozen before the page is drawn again."""


class FreezeJob(Job):
    """One version being frozen, started at once. ``head`` is set when it is stored.

    Args:
        freeze: stores the version and returns it; calls the progress function that it is given.
    """

    def __init__(self, freeze: Callable[[Progress], dict[str, Any]]) -> None:
        super().__init__("freeze", 0, "freezing was cancelled; nothing was stored")
        self.head: dict[str, Any] | None = None
        self._freeze = freeze
        self.start()
        self.join(SHORT_S)

    def work(self) -> None:
        """Freeze the version."""
        self.head = self._freeze(self.report)


def show_freezing(job: FreezeJob) -> None:
    """Draw a job that has not stored its version: its progress, or why it ended."""
    if job.running:
        kit.live(0.5)(_progress)(job)
    elif isinstance(job.error, Cancelled):
        st.html(kit.caption_html(f"{job.error.message[:1].upper()}{job.error.message[1:]}."))
    elif job.error is not None:
        kit.show_error(job.error)


def _progress(job: FreezeJob) -> None:
    if not job.running:
        st.rerun()
    share = job.done / job.total if job.total else 0.0
    st.progress(share, f"Freezing: {job.done:,} of {job.total:,} trajectories" if job.total else "Freezing…")
    if st.button("Cancel", icon=":material/cancel:", key="freeze-cancel"):
        job.cancel()
