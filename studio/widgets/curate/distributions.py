"""Histograms of the matching steps, one per column, split by a facet; a drag across a plot filters."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.types import View
from studio import kit, state
from studio.charts.distributions import stacked
from studio.kit.filters import FACETS, apply_view, view_hash, with_filter

DISTRIBUTIONS = {
    "trajectory_reward": "Trajectory reward",
    "reward": "Step reward",
    "difficulty": "Difficulty",
    "n_steps": "Steps of the trajectory",
    "n_prompt_tokens": "Prompt tokens",
    "n_response_tokens": "Response tokens",
    "staleness": "Staleness",
    "latency_s": "Latency, seconds",
    "step_index": "Step index",
}
BINS = 24
COLUMNS = 3


def distributions(view: View) -> None:
    """A grid of histograms. The facet that splits them is in the URL as ``by``."""
    pool = state.service().pool
    by = facet_choice()
    n_steps = pool.steps.count(view)
    spreads = {name: pool.stats.distribution(view, name, by=by, bins=BINS).to_pylist() for name in DISTRIBUTIONS}
    totals: dict[str | None, int] = {}
    for row in max(spreads.values(), key=len):
        totals[row["part"]] = totals.get(row["part"], 0) + row["n_steps"]
    seen = {row["part"] for rows in spreads.values() for row in rows}
    parts = sorted(seen, key=lambda part: (part == "(others)", -totals.get(part, 0), str(part)))
    st.caption(f"{kit.count(n_steps)} steps match. Drag across a plot to filter by that range.")
    if by is not None:
        legend(parts)
    for place, (name, title) in enumerate(DISTRIBUTIONS.items()):
        if place % COLUMNS == 0:  # row by row, so that an empty plot does not shift those below
            columns = st.columns(COLUMNS, gap="medium")
        with columns[place % COLUMNS]:
            one_histogram(view, name, title, spreads[name], parts, by)


def facet_choice() -> str | None:
    """The facet that splits the histograms, or None."""
    requested = state.query("by")
    options = [None, *FACETS]
    current = requested if requested in FACETS else None
    chosen = st.selectbox(
        "Split by",
        options,
        index=options.index(current),
        format_func=lambda name: "All steps together" if name is None else f"Split by {FACETS[name].lower()}",
        label_visibility="collapsed",
        width=260,
        key=f"by-{current}",
    )
    if chosen != current:
        state.set_query(by=chosen)
        st.rerun()
    return current


def legend(parts: list[str | None]) -> None:
    """The parts and their colours, once for all plots."""
    marks = []
    for place, part in enumerate(parts):
        tone = "muted" if part is None else f"s{place % 7}"
        marks.append(f'<span><i class="{tone}"></i>{kit.escape("unknown" if part is None else part)}</span>')
    st.html(f'<div class="cs-legend">{"".join(marks)}</div>')


def one_histogram(view: View, name: str, title: str, rows: list[Any], parts: list[str | None], by: str | None) -> None:
    """One histogram; a selected range becomes a filter."""
    kit.section(title)
    if not rows:
        st.caption("No matching step has this value.")
        return
    event = kit.plot(
        stacked(rows, noun="steps", parts=parts, height=176),
        key=f"hist-{name}-{by}-{view_hash(view)}",
        alt=f"Histogram of {title.lower()}",
        on_select="rerun",
        selection_mode="box",
    )
    box = event["selection"]["box"]
    if box:
        low, high = sorted(float(x) for x in box[0]["x"])
        apply_view(with_filter(view, name, [round(low, 6), round(high, 6)]))
