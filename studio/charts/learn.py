"""Charts of learning: reward by policy version with bands, and measures of the updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from studio.charts import theme

STAGES = ("rollouts", "lease", "fetch", "train", "save", "ack", "sync")
"""Stages in the order of an update; others follow in the order of their names."""


def success(curves: Sequence[Mapping[str, Any]], *, height: int = 300) -> go.Figure:
    """Mean reward by update, one line per curve, with its band if it is ``banded``.

    Args:
        curves: ``{label, dashed, banded, joined, points}``; ``points`` are pairs of a ``VersionReward`` and its update.
        height: pixels.
    """
    chart = theme.figure(height=height, xaxis_title="updates since the run began", yaxis_title="mean reward")
    for place, curve in enumerate(curves):
        tone = theme.SERIES[place % len(theme.SERIES)]
        points = curve["points"]
        x = [update for _, update in points]
        banded = [(update, point) for point, update in points if point.low is not None and curve["banded"]]
        chart.add_scatter(
            x=[update for update, _ in banded] + [update for update, _ in reversed(banded)],
            y=[point.high for _, point in banded] + [point.low for _, point in reversed(banded)],
            mode="lines",
            fill="toself",
            opacity=0.35,
            line={"width": 0, "color": tone},
            hoverinfo="skip",
            showlegend=False,
        )
        chart.add_scatter(
            x=x,
            y=[point.mean for point, _ in points],
            name=theme.escape(curve["label"]),
            mode="lines+markers" if curve["joined"] else "markers",
            line={"width": 2, "color": tone, "dash": "dot" if curve["dashed"] else "solid"},
            marker={"size": 7, "color": tone},
            customdata=[
                [point.channel, point.version, point.n_trajectories, point.low, point.high] for point, _ in points
            ],
            hovertemplate="%{y:.1%} (%{customdata[3]:.1%} to %{customdata[4]:.1%})<br>version %{customdata[1]}, "
            "%{customdata[2]:,} attempts<extra></extra>",
        )
    chart.update_layout(showlegend=True)
    means = [point.mean for curve in curves for point, _ in curve["points"]]
    if means and min(means) >= 0 and max(means) <= 1:
        chart.update_yaxes(range=[0, 1.02], tickformat=".0%")
    last = max((update for curve in curves for _, update in curve["points"]), default=0)
    theme.integer_ticks(chart, 0, max(1, last))
    return chart


def stages(rows: Sequence[Any], *, height: int = 180) -> go.Figure:
    """Seconds of each stage of an update, stacked. ``rows``: ``core.batch.learning.Update``."""
    known = {stage for row in rows for stage in row.stages}
    names = [name for name in STAGES if name in known] + sorted(known - set(STAGES))
    chart = theme.figure(height=height, yaxis_title="seconds", barmode="stack")
    for place, name in enumerate(names):
        chart.add_bar(
            x=_places(rows),
            y=[row.stages.get(name) for row in rows],
            name=theme.escape(name),
            marker={"color": theme.SERIES[place % len(theme.SERIES)]},
            customdata=[[row.batch_uid] for row in rows],
            hovertemplate=f"{theme.escape(name)} %{{y:.2f}} s<extra></extra>",
        )
    chart.update_layout(showlegend=True)
    return chart


def measure(
    rows: Sequence[Any], values: Mapping[str, Sequence[float | None]], *, height: int = 150, zero: bool = False
) -> go.Figure:
    """Lines over updates, one per name of ``values``; each has one value per row."""
    chart = theme.figure(height=height)
    for place, (name, series) in enumerate(values.items()):
        chart.add_scatter(
            x=_places(rows),
            y=list(series),
            name=theme.escape(name),
            mode="lines+markers",
            line={"width": 1.5, "color": theme.SERIES[place % len(theme.SERIES)]},
            marker={"size": 6},
            customdata=[[row.batch_uid] for row in rows],
            hovertemplate=f"{theme.escape(name)} %{{y:.4g}}<extra></extra>",
        )
    chart.update_layout(showlegend=len(values) > 1)
    chart.update_yaxes(exponentformat="e")
    if zero:
        chart.update_yaxes(rangemode="tozero")
    return chart


def _places(rows: Sequence[Any]) -> list[int]:
    """The trainer's update numbers if all are known, else places."""
    if all(row.update is not None for row in rows):
        return [row.update for row in rows]
    return list(range(1, len(rows) + 1))
