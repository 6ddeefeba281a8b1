"""Trends on the Overview: one measure of trajectories over time or policy versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from core.service import Service
from core.types import View
from studio import kit, state
from studio.charts.trends import MEASURES, trend
from studio.kit.url_choices import list_choice, segmented_choice

AXES = {"time": "Time", "policy_version": "Policy version"}
SPLITS = {
    "none": "Not split",
    "agent": "By agent",
    "run": "By run",
    "task": "By task",
    "model": "By model",
    "channel": "By channel",
}
FILTERS = {"agent": "agent", "run": "run", "task": "prompt_uid", "model": "model", "channel": "channel"}
"""Split -> the filter that selects one of its parts."""
OTHERS = "(others)"


def show_trends(service: Service) -> None:
    """The chart with its choices, which are kept in the URL; a click on a dot opens its trajectories."""
    kit.section("Trends", "trajectories by their start; click a dot to see them")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        measure = segmented_choice("Measure", {name: label for name, (label, _) in MEASURES.items()}, "trend")
        st.space("stretch")
        axis = list_choice("Over", AXES, "over", label_visibility="collapsed", width=150)
        by = list_choice("Split", SPLITS, "split", label_visibility="collapsed", width=150)
    rows = service.pool.stats.trends(axis=axis, by=None if by == "none" else by).to_pylist()
    if not any(row[measure] is not None for row in rows):
        why = "No trajectory has a known policy version." if axis == "policy_version" else "No trajectory has a reward."
        kit.empty_state("No data to plot", why if not rows or measure in ("reward", "success_rate") else "No value.")
        return
    event = kit.plot(
        trend(rows, measure, axis),
        key=f"chart-trend-{measure}-{axis}-{by}",
        alt=f"{MEASURES[measure][0]} of trajectories over {AXES[axis].lower()}",
        on_select="rerun",
        selection_mode="points",
    )
    if event.selection.points:
        row = rows[event.selection.points[0]["customdata"][0]]
        state.goto("inspect", **state.view_to_query(view_of(row, axis, by)))


def view_of(row: Mapping[str, Any], axis: str, by: str) -> View:
    """The trajectories of one dot: those that start, by their first step, in its interval."""
    filters: dict[str, Any] = {}
    if axis == "time":
        # The last interval includes its end; a microsecond more does not reach another trajectory's start.
        ends = (datetime.fromtimestamp(at, UTC).isoformat() for at in (row["low"], row["high"] + 1e-6))
        filters |= {"created_at": list(ends), "step_index": [0, 0]}
    else:
        last = row["high"] - 1 if row["high"] - row["low"] >= 1 else row["high"]
        filters["policy_version"] = [int(row["low"]), int(last)]
    if by in FILTERS and row["part"] not in (None, OTHERS):
        filters[FILTERS[by]] = row["part"]
    return View(filters)
