"""Sliders for ranges of numbers, each below a histogram of the values that match the other filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from core.types import View
from studio import state
from studio.kit.format import escape

SLIDERS: dict[str, str] = {
    "trajectory_reward": "Trajectory reward",
    "n_steps": "Steps of the trajectory",
    "n_response_tokens": "Response tokens",
    "latency_s": "Latency, seconds",
    "staleness": "Staleness",
}
BINS = 24

SetRange = Callable[[str, "list[float | None] | None"], None]


def range_sliders(view: View, key: str, set_range: SetRange) -> None:
    """An expander with a slider for each of ``SLIDERS``; histograms are read only while it is open.

    ``set_range`` is called with the name and the chosen ``[low, high]``, where None is no bound, or None for no filter.
    """
    # Another label would be another expander, and closed.
    opened = st.expander("Ranges", icon=":material/bar_chart:", key=f"{key}-ranges", on_change="rerun")
    if not opened.open:
        return
    with opened:
        stats = state.service().pool.stats
        for name, title in SLIDERS.items():
            others = View({one: value for one, value in view.filters.items() if one != name}, view.where)
            rows = stats.distribution(others, name, bins=BINS).to_pylist()
            _slider(name, title, rows, view.filters.get(name), key, set_range)


def _slider(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], chosen: Any, key: str, set_range: SetRange
) -> None:
    if not rows:
        st.html(f'<div class="cs-note"><b>{escape(title)}</b>: no values</div>')
        return
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    # Bins of whole numbers reach half a number beyond them.
    is_whole = all((end + 0.5).is_integer() for end in (low, high))
    if is_whole:
        low, high = low + 0.5, high - 0.5
    if low >= high:
        st.html(f'<div class="cs-note"><b>{escape(title)}</b>: all {low:g}</div>')
        return
    bounds = chosen if isinstance(chosen, list | tuple) and len(chosen) == 2 else (chosen, chosen)
    first, last = (
        min(max(float(end if one is None else one), low), high) for one, end in zip(bounds, (low, high), strict=True)
    )
    st.html(histogram_html(title, rows, (first, last)))
    step = 1.0 if is_whole or high - low >= 50 else (high - low) / 200
    picked = st.slider(
        title,
        low,
        high,
        (first, last),
        step=step,
        key=f"{key}-slide-{name}-{low}-{high}-{first}-{last}",
        label_visibility="collapsed",
        format="%d" if step == 1 else "%.3g",
    )
    if picked != (first, last):
        ends = [None if picked[0] <= low else picked[0], None if picked[1] >= high else picked[1]]
        set_range(name, None if ends == [None, None] else ends)


def histogram_html(title: str, rows: Sequence[Mapping[str, Any]], chosen: tuple[float, float]) -> str:
    """Bars of the numbers of steps, ``rows`` being ``{low, high, n_steps}``; those outside of ``chosen`` are pale.

    Heights are square roots, so that rare values stay visible.
    """
    least, most = min(row["low"] for row in rows), max(row["n_steps"] for row in rows)
    share = 100 / (max(row["high"] for row in rows) - least)
    bars = ""
    for row in rows:
        pale = "" if row["high"] >= chosen[0] and row["low"] <= chosen[1] else ' class="out"'
        left, width = share * (row["low"] - least), max(share * (row["high"] - row["low"]), 1.5)
        height = 100 * (row["n_steps"] / most) ** 0.5
        bars += (
            f'<i{pale} style="left:{left:.2f}%;width:{width:.2f}%;height:{height:.0f}%" '
            f'title="{row["n_steps"]:,} steps, {row["low"]:.4g} to {row["high"]:.4g}"></i>'
        )
    return f'<div class="cs-range"><b>{escape(title)}</b><div class="h">{bars}</div></div>'
