"""Estimators side by side: advantages of one trajectory, step by step and token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from studio.charts import theme

MAX_CELLS = 1500
"""Maximum number of columns. In longer trajectories, a column is the mean of several tokens of a step."""


def credit_map(
    names: Sequence[str],
    tokens: Sequence[NDArray[np.floating]],
    n_response: Sequence[int],
    *,
    height: int | None = None,
) -> go.Figure:
    """A row per estimator, a column per response token; lines separate the steps. Each row has its own colour scale.

    Args:
        names: [e] estimators.
        tokens: [e] arrays [m], advantages of the trajectory's response tokens.
        n_response: [n] tokens of each step, m in all.
        height: pixels.
    """
    edges = np.concatenate([[0], np.cumsum(n_response)])
    width = max(1, int(-(-edges[-1] // MAX_CELLS)))
    cuts = np.unique(np.concatenate([edges, np.arange(0, edges[-1] + 1, width)])).astype(int)
    step = np.searchsorted(edges, cuts[:-1], side="right")
    rows, shown = [], []
    for values in tokens:
        sums = np.add.reduceat(np.asarray(values, dtype=np.float64), cuts[:-1]) / np.diff(cuts)
        reach = np.nanmax(np.abs(sums), initial=0.0) or 1.0
        rows.append(sums / reach)
        shown.append(sums)
    chart = theme.figure(
        go.Heatmap(
            z=rows,
            x=(cuts[:-1] + cuts[1:]) / 2,
            y=list(names),
            customdata=np.stack([np.array(shown), np.broadcast_to(step, (len(names), len(step)))], axis=-1),
            colorscale=theme.DIVERGING,
            zmin=-1,
            zmax=1,
            colorbar={
                "thickness": 8,
                "outlinewidth": 0,
                "tickfont": {"size": theme.TICK_SIZE},
                "tickvals": [-1, 0, 1],
                "ticktext": ["− largest", "0", "+ largest"],
            },
            ygap=6,
            hovertemplate="%{y}<br>advantage %{customdata[0]:+.4g}<br>step %{customdata[1]:.0f}, token %{x:.0f}"
            "<extra></extra>",
        ),
        height=height or 60 + 44 * len(names),
        xaxis_title="response tokens of the trajectory; lines separate its steps",
    )
    # Added together: plotly validates the whole figure for every line added alone.
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "color": theme.MUTED}}
    chart.update_layout(shapes=[{**line, "x0": float(edge), "x1": float(edge)} for edge in edges[1:-1]])
    chart.update_yaxes(autorange="reversed", showgrid=False, nticks=None)
    return chart


def sweep_bars(values: Sequence[str], counts: Sequence[int], current: int | None, *, noun: str) -> go.Figure:
    """A bar per value of a recipe's field; the current value is opaque, the others are paler."""
    chart = theme.figure(
        go.Bar(
            x=list(values),
            y=list(counts),
            marker={
                "color": theme.GOOD,
                "opacity": [1.0 if place == current else 0.45 for place in range(len(values))],
            },
            hovertemplate=f"%{{x}}: %{{y:,}} {noun}<extra></extra>",
        ),
        height=240,
        yaxis_title=noun,
    )
    chart.update_xaxes(type="category")
    chart.update_yaxes(rangemode="tozero")
    return chart
