"""Packing while the page lives on: a big plan's rows are made when asked for, and told from a sample until then."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import streamlit as st

from core.batch.layout import PlanLayout, lay_out
from core.batch.plan import Plan
from core.batch.result import LAYOUT_TOKENS_MAX
from studio.kit.callouts import empty_state, live, show_error
from studio.kit.format import compact, count
from studio.kit.jobs import Cancelled, Job

SAMPLE_TOKENS = 40_000_000
SAMPLE_GROUPS = 64


class PackingJob(Job):
    """One plan's packing, counted in tokens."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("packing", plan.counts["n_tokens"], "the packing was cancelled")
        self.plan = plan
        self.began = 0.0

    def start(self) -> None:
        """Begin, or begin again after a cancel; nothing where it runs or is done."""
        if not self.running and not self.plan.is_packed:
            self.began = time.monotonic()
            super().start()

    def left_s(self) -> float | None:
        """Seconds to go at the pace so far; None before there is one."""
        spent = time.monotonic() - self.began
        return spent * (self.total - self.done) / self.done if self.done else None

    def work(self) -> None:
        """Pack; a cancel is no failure, it may begin again."""
        try:
            self.plan.pack(self.report)
        except Cancelled:
            self.done = 0


@st.cache_resource(max_entries=2, show_spinner=False)
def _job_at(layout_key: str, _plan: Plan) -> PackingJob:
    return PackingJob(_plan)


def job_of(made: Plan) -> PackingJob:
    """The one packing of these steps under this budget, whoever looks at it and however many ranks they want."""
    return _job_at(made.layout_key, made)


def packed(made: Plan) -> PlanLayout | None:
    """The plan's rows where they are known or soon made; None for a big plan that nobody has packed yet."""
    if not made.is_packed:
        if made.counts["n_tokens"] <= LAYOUT_TOKENS_MAX:
            made.pack()
        elif (job := job_of(made)).plan.is_packed:
            made.keep_layout(job.plan.layout)
        else:
            return None
    return made.layout


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some of a plan's groups, packed: the first, the last and those evenly between them.

    Attributes:
        layout: their rows.
        n_groups: how many they are.
        scale: the plan's tokens over theirs.
        pace: tokens a second, of its quickest stretch: the first ones wait for the disk.
        separate: the visible pairs of the whole plan's separate sequences, counted from all lengths.
    """

    layout: PlanLayout
    n_groups: int
    scale: float
    pace: float
    separate: int


def sample(made: Plan) -> Sample:
    """A sample of a plan too big to pack in passing."""
    return _sample_at(made.layout_key, made)


@st.cache_resource(max_entries=8, show_spinner=False)
def _sample_at(layout_key: str, _plan: Plan) -> Sample:
    group = _plan.steps["group"].to_numpy().astype(np.int64)
    tokens = np.bincount(group, _plan.lengths)
    most = int(np.clip(SAMPLE_TOKENS // max(tokens.mean(), 1), 1, SAMPLE_GROUPS))
    chosen = np.unique(np.linspace(0, len(tokens) - 1, most).round().astype(np.int64))
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
    return Sample(layout, len(chosen), scale, pace, separate)


def packing_line(made: Plan) -> None:
    """Below the estimated figures: what they are estimated from, and the way to the exact ones."""
    job = job_of(made)
    if job.running:
        live(0.5)(packing_progress)(job)
        return
    if job.error is not None:
        show_error(job.error)
    part = sample(made)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="packing-line"):
        st.caption(
            f"≈ is estimated from {count(part.n_groups)} of {count(made.n_groups)} groups, spread evenly over the "
            f"plan. Exact figures read all {compact(job.total)} tokens: about {about(job.total / part.pace)}."
        )
        st.button("Pack the whole plan", icon=":material/account_tree:", key="pack", on_click=job.start)


def packing_progress(job: PackingJob) -> None:
    """The bar of a running packing, and the way to end it."""
    if not job.running:
        st.rerun()
    left = job.left_s()
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="packing-line"):
        st.progress(
            min(job.done / job.total, 1.0) if job.total else 1.0,
            f"Packing: {compact(job.done)} of {compact(job.total)} tokens"
            + ("" if left is None else f", about {about(left)} to go"),
        )
        st.button("Cancel", icon=":material/cancel:", key="pack-cancel", on_click=job.cancel)


def about(value: float) -> str:
    """A duration nobody should read to the second."""
    return f"{5 * max(math.ceil(value / 5), 1)} s" if value < 60 else f"{math.ceil(value / 60)} min"


def not_packed(made: Plan, what: str) -> None:
    """In place of what only the whole packing can show."""
    job = job_of(made)
    if job.running:
        empty_state(what, "They stand here as soon as the plan is packed.", icon="hourglass_top")
    else:
        empty_state(
            what,
            "The plan is big, so it is packed when you say so.",
            icon="account_tree",
            then=("Pack it now", job.start),
        )
