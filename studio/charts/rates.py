"""Live traffic: calls, errors and tokens per second over the last minute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from studio.charts import theme

WINDOW_S = 60


def call_rate(series: Sequence[dict[str, Any]], *, height: int = 190) -> go.Figure:
    """Calls per second as bars, failed ones on top of them. ``series``: ``{at, calls, errors}`` per whole second.

    The time axis counts back from the newest second, so it stands still while the bars move.
    """
    end = series[-1]["at"] if series else 0
    ago = [entry["at"] - end for entry in series]
    errors = [entry["errors"] for entry in series]
    fine = [entry["calls"] - entry["errors"] for entry in series]
    top = max((entry["calls"] for entry in series), default=0)
    made = theme.figure(
        _bars(ago, fine, "answered", theme.GOOD),
        _bars(ago, errors, "failed", theme.BAD),
        height=height,
        barmode="stack",
        bargap=0.15,
    )
    return _seconds_axis(made, top, floor=4)


def token_rate(series: Sequence[dict[str, Any]], *, height: int = 190) -> go.Figure:
    """Response tokens per second. ``series``: ``{at, tokens}`` per whole second."""
    end = series[-1]["at"] if series else 0
    made = theme.figure(
        go.Scatter(
            x=[entry["at"] - end for entry in series],
            y=[entry["tokens"] for entry in series],
            mode="lines",
            line={"color": theme.SERIES[1], "width": 1.5, "shape": "hv"},
            fill="tozeroy",
            hovertemplate="%{y:,} tokens/s<extra></extra>",
        ),
        height=height,
    )
    return _seconds_axis(made, max((entry["tokens"] for entry in series), default=0), floor=50)


def latencies(seconds: Sequence[float], *, height: int = 190) -> go.Figure:
    """Distribution of call latencies, in seconds, on a logarithmic axis: answers span milliseconds to minutes."""
    made = theme.figure(height=height, bargap=0.06)
    positive = [value for value in seconds if value > 0]
    edges = [place / 4 for place in range(-12, 13)]  # 1 ms to 1000 s, four bins per decade
    counts = [0] * (len(edges) - 1)
    for value in positive:
        place = int((math.log10(value) - edges[0]) * 4)
        counts[min(max(place, 0), len(counts) - 1)] += 1
    made.add_bar(
        x=[(low + high) / 2 for low, high in pairwise(edges)],
        y=counts,
        width=0.25,
        marker={"color": theme.SERIES[5]},
        customdata=[[_text(10**low), _text(10**high)] for low, high in pairwise(edges)],
        hovertemplate="%{y} calls<br>%{customdata[0]} to %{customdata[1]}<extra></extra>",
    )
    used = [place for place, n in enumerate(counts) if n]
    low, high = (edges[used[0]] - 0.5, edges[used[-1] + 1] + 0.5) if used else (-2, 1)
    made.update_xaxes(
        range=[low, high],
        tickvals=[-3, -2, -1, 0, 1, 2, 3],
        ticktext=["1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "1000 s"],
    )
    made.update_yaxes(range=[0, max(*counts, 3) * 1.12])
    return made


def _text(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _bars(x: list[float], y: list[float], name: str, colour: str) -> go.Bar:
    return go.Bar(x=x, y=y, name=name, marker={"color": colour}, hovertemplate=f"%{{y}} {name}<extra></extra>")


def _seconds_axis(made: go.Figure, top: float, *, floor: float) -> go.Figure:
    made.update_xaxes(
        range=[-WINDOW_S + 0.5, 0.6],
        tickvals=[-50, -40, -30, -20, -10],
        ticktext=["−50 s", "−40", "−30", "−20", "−10"],
    )
    made.update_yaxes(range=[0, max(top * 1.15, floor)])
    return made
