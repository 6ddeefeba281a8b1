"""Trends of trajectories: one measure over time or policy versions, a line per part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

from studio.charts import theme

MEASURES: Mapping[str, tuple[str, str]] = {
    "reward": ("Reward", ".3g"),
    "success_rate": ("Success", ".0%"),
    "n_steps": ("Steps", ".3g"),
    "n_tokens": ("Tokens", ",.0f"),
    "error_rate": ("Failed calls", ".1%"),
    "n_trajectories": ("Trajectories", ",d"),
}
"""Column of ``pool.stats.trends`` -> its label and number format."""


def trend(rows: Sequence[Mapping[str, Any]], measure: str, axis: str, *, height: int = 220) -> go.Figure:
    """A line with a dot per interval for each part; the dot's size grows with its trajectories.

    Args:
        rows: ``pool.stats.trends``.
        measure: key of ``MEASURES``.
        axis: ``time`` or ``policy_version``.
        height: pixels.
    """
    label, form = MEASURES[measure]
    parts = list(dict.fromkeys(row["part"] for row in rows))
    most = max((row["n_trajectories"] for row in rows), default=1)
    chart = theme.figure(height=height)
    for place, part in enumerate(parts):
        # The number of the row says which interval was clicked.
        chosen = [(n, row) for n, row in enumerate(rows) if row["part"] == part and row[measure] is not None]
        name = "unknown" if part is None else theme.escape(part)
        head = f"{name}<br>" if len(parts) > 1 else ""
        chart.add_scatter(
            x=[_middle(row, axis) for _, row in chosen],
            y=[row[measure] for _, row in chosen],
            name=name,
            mode="lines+markers",
            line={"width": 1.5, "color": theme.SERIES[place % len(theme.SERIES)]},
            marker={"size": [6 + 6 * (row["n_trajectories"] / most) ** 0.5 for _, row in chosen]},
            customdata=[[n, row["n_trajectories"]] for n, row in chosen],
            hovertemplate=f"{head}{label} %{{y:{form}}}<br>%{{customdata[1]:,}} trajectories<br>%{{x}}<extra></extra>",
        )
    chart.update_layout(showlegend=len(parts) > 1)
    if axis == "policy_version":
        chart.update_xaxes(title="policy version")
        if rows:
            theme.integer_ticks(chart, rows[0]["low"], rows[-1]["high"])
    chart.update_yaxes(
        rangemode="tozero" if measure != "reward" else "normal", tickformat=form if "%" in form else None
    )
    return chart


def _middle(row: Mapping[str, Any], axis: str) -> Any:
    """Where an interval's dot stands: its middle, or the version itself."""
    if axis == "policy_version":
        return row["low"] if row["high"] - row["low"] == 1 else (row["low"] + row["high"]) / 2
    return datetime.fromtimestamp((row["low"] + row["high"]) / 2, UTC)
