"""Packing of plans: small ones at once, large ones in a background job, with estimates from a sample until then."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import streamlit as st

from core.batch.layout import PlanLayout, lay_out
from core.batch.plan import Plan
from studio.kit.callouts import empty_state, live, show_error
from studio.kit.format import compact, count
from studio.kit.jobs import Cancelled, Job

SAMPLE_TOKENS = 40_000_000
SAMPLE_GROUPS = 64


class PackingJob(Job):
    """Packs one plan; progress is counted in tokens."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("packing", plan.counts["n_tokens"], "the packing was cancelled")
        self.plan = plan
        self.began = 0.0

    def start(self) -> None:
        """Start, or start again after a cancel; does nothing while it runs or when it is done."""
        if not self.running and not self.plan.is_packed:
            self.began = time.monotonic()
            super().start()

    def left_s(self) -> float | None:
        """Estimated seconds left; None before any progress."""
        spent = time.monotonic() - self.began
        return spent * (self.total - self.done) / self.done if self.done else None

    def work(self) -> None:
        """Pack the plan. A cancelled job can be started again."""
        try:
            self.plan.pack(self.report)
        except Cancelled:
            self.done = 0


@st.cache_resource(max_entries=2, show_spinner=False)
def _job_at(layout_key: str, _plan: Plan) -> PackingJob:
    return PackingJob(_plan)


def packing_job(plan: Plan) -> PackingJob:
    """The packing job of these steps under this budget, shared by all sessions and independent of the ranks."""
    return _job_at(plan.layout_key, plan)


def packed_layout(plan: Plan) -> PlanLayout | None:
    """The plan's packed rows, packed now if the plan is small; None for a large plan that is not packed yet."""
    if not plan.is_packed:
        if plan.is_packed_at_once:
            plan.pack()
        elif (job := packing_job(plan)).plan.is_packed:
            plan.keep_layout(job.plan.layout)
        else:
            return None
    return plan.layout


@dataclass(frozen=True, slots=True, eq=False)
class PackingSample:
    """A packed sample of a plan's groups: the first, the last and groups evenly spaced between them.

    Attributes:
        layout: their packed rows.
        n_groups: number of sampled groups.
        scale: tokens of the plan divided by tokens of the sample.
        pace: tokens per second of the fastest interval, since the first reads wait for the disk.
        separate: visible pairs of all sequences of the plan without sharing, computed from their lengths.
    """

    layout: PlanLayout
    n_groups: int
    scale: float
    pace: float
    separate: int


def sample_packing(plan: Plan) -> PackingSample:
    """A packed sample of a plan that is too large to pack at once."""
    return _sample_at(plan.layout_key, plan)


@st.cache_resource(max_entries=8, show_spinner=False)
def _sample_at(layout_key: str, _plan: Plan) -> PackingSample:
    group = _plan.steps["group"].to_numpy().astype(np.int64)
    tokens = np.bincount(group, _plan.lengths)
    n_groups = int(np.clip(SAMPLE_TOKENS // max(tokens.mean(), 1), 1, SAMPLE_GROUPS))
    chosen = np.unique(np.linspace(0, len(tokens) - 1, n_groups).round().astype(np.int64))
    index = np.flatnonzero(np.isin(group, chosen))
    lengths = _plan.lengths
    ticks, read = [time.monotonic()], [0]

    def tick(done: int, _total: int) -> None:
        ticks.append(time.monotonic())
        read.append(done)

    uids = [_plan.step_uids[i] for i in index.tolist()]
    layout = lay_out(
        _plan.reader,
        uids,
        np.searchsorted(chosen, group[index]),
        lengths[index],
        _plan.recipe.token_budget,
        progress=tick,
    )
    pace = float((np.diff(read) / np.maximum(np.diff(ticks), 1e-6)).max(initial=1.0))
    separate = int((lengths * (lengths + 1) // 2).sum())
    scale = float(lengths.sum() / max(lengths[index].sum(), 1))
    return PackingSample(layout, len(chosen), scale, pace, separate)


def packing_controls(plan: Plan) -> None:
    """Below estimated figures: what they are estimated from, and the button that packs the whole plan."""
    job = packing_job(plan)
    if job.running:
        live(0.5)(packing_progress)(job)
        return
    if job.error is not None:
        show_error(job.error)
    part = sample_packing(plan)
    duration = rounded_duration(job.total / part.pace)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="packing-line"):
        st.caption(
            f"≈ is estimated from {count(part.n_groups)} of {count(plan.n_groups)} groups, evenly spaced over the "
            f"plan. Exact figures read all {compact(job.total)} tokens: about {duration}."
        )
        st.button("Pack the whole plan", icon=":material/account_tree:", key="pack", on_click=job.start)


def packing_progress(job: PackingJob) -> None:
    """The progress of a running packing job, and the button that cancels it."""
    if not job.running:
        st.rerun()
    left = job.left_s()
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="packing-line"):
        st.progress(
            min(job.done / job.total, 1.0) if job.total else 1.0,
            f"Packing: {compact(job.done)} of {compact(job.total)} tokens"
            + ("" if left is None else f", about {rounded_duration(left)} to go"),
        )
        st.button("Cancel", icon=":material/cancel:", key="pack-cancel", on_click=job.cancel)


def rounded_duration(value: float) -> str:
    """A duration rounded up to 5 seconds, or to a minute."""
    return f"{5 * max(math.ceil(value / 5), 1)} s" if value < 60 else f"{math.ceil(value / 60)} min"


def packing_needed(plan: Plan, what: str) -> None:
    """Placeholder for what needs the whole plan packed, with a button that starts it."""
    job = packing_job(plan)
    if job.running:
        empty_state(what, "They appear here when the plan is packed.", icon="hourglass_top")
    else:
        empty_state(
            what,
            "The plan is large, so it is packed on request.",
            icon="account_tree",
            then=("Pack it now", job.start),
        )
