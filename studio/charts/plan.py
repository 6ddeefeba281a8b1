"""Figures of a plan: how reward and advantage spread, and what each prompt group gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from core.credit.base import Ints
from studio.charts import theme


def spread(
    values: Sequence[float | None], *, noun: str, bins: int = 24, height: int = 180, counted: bool = False
) -> go.Figure:
    """Histogram of the known values; the unknown are counted in the corner, never drawn as 0.

    ``counted``: the values are whole numbers, so each has a bar of its own where there are few.
    """
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    made = theme.figure(height=height)
    if len(known):
        low, high = float(known.min()), float(known.max())
        whole = counted and high - low < bins
        if whole:
            bins, low, high = int(high - low) + 1, low - 0.5, high + 0.5
        elif low == high:
            low, high = low - 0.5, high + 0.5
        counts, edges = np.histogram(known, bins=bins, range=(low, high))
        said = edges[:-1] + 0.5 if whole else edges[:-1]
        between = "%{customdata[0]:d}" if whole else "%{customdata[0]:.3g} to %{customdata[1]:.3g}"
        made.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            width=np.diff(edges) * 0.94,
            marker={"color": theme.GOOD},
            customdata=np.stack([said, edges[1:]], axis=1),
            hovertemplate=f"%{{y:,}} {noun}<br>{between}<extra></extra>",
        )
        if counted:
            theme.whole_ticks(made, low, high)
    n_unknown = len(values) - len(known)
    if n_unknown:
        made.add_annotation(
            text=f"{n_unknown:,} unknown", x=1, y=1, xref="paper", yref="paper", showarrow=False, xanchor="right"
        )
    made.update_yaxes(rangemode="tozero")
    return made


def group_strip(
    groups: Sequence[str],
    rewards: Sequence[float | None],
    advantages: Sequence[float | None],
    uids: Sequence[str],
    *,
    height: int = 240,
) -> go.Figure:
    """One dot per trajectory: its group on x, its reward on y, its advantage as colour (red below 0, teal above).

    All four are ``[n]``, in plan order; unknown rewards are left out.
    """
    names = list(dict.fromkeys(groups))
    place = {name: index for index, name in enumerate(names)}
    kept = [i for i, reward in enumerate(rewards) if reward is not None]
    known = [abs(value) for value in advantages if value is not None]
    reach = max(known, default=1.0) or 1.0
    shades = [advantages[i] if advantages[i] is not None else 0.0 for i in kept]
    made = theme.figure(
        go.Scatter(
            x=[place[groups[i]] for i in kept],
            y=[rewards[i] for i in kept],
            mode="markers",
            marker={
                "size": 9,
                "color": shades,
                "colorscale": theme.DIVERGING,
                "cmin": -reach,
                "cmax": reach,
                "line": {"width": 1, "color": theme.MUTED},
            },
            customdata=[
                [uids[i], groups[i], "none" if advantages[i] is None else f"{advantages[i]:+.3f}"] for i in kept
            ],
            hovertemplate="%{customdata[0]}<br>group %{customdata[1]}<br>reward %{y:.3g}<br>"
            "advantage %{customdata[2]}<extra></extra>",
        ),
        height=height,
        xaxis_title="prompt group, plan order",
        yaxis_title="reward",
    )
    made.update_xaxes(range=[-0.5, max(len(names) - 0.5, 0.5)], dtick=max(1, len(names) // 12))
    return made


BARS = 300
"""Bars of a drawing: more are thinner than a pixel, and a browser then draws some of them and not others."""


def bar_of(n: int) -> int:
    """How many neighbours one bar stands for."""
    return -(-n // BARS)


def group_tokens(names: Sequence[str], tokens: Ints, packed: Ints, *, height: int = 240) -> go.Figure:
    """Tokens of each group before and after sharing prefixes: two bars per group, or per ``bar_of`` groups their mean.

    int64 ``[g]`` each.
    """
    each = bar_of(len(names))
    places = np.arange(0, len(names), each)
    counts = np.diff(np.append(places, len(names)))
    ends = [names[place + n - 1] for place, n in zip(places.tolist(), counts.tolist(), strict=True)]
    said = [
        names[place] if names[place] == end else f"{names[place]} to {end}, mean"
        for place, end in zip(places.tolist(), ends, strict=True)
    ]
    bars = [
        go.Bar(
            x=places + (counts - 1) / 2,
            y=np.add.reduceat(values, places) / counts if len(places) else [],
            width=counts * 0.92,
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            customdata=said,
            hovertemplate=f"%{{customdata}}<br>%{{y:,.0f}} tokens {name}<extra></extra>",
        )
        for name, values, colour in (("separate", tokens, theme.MUTED), ("packed", packed, theme.GOOD))
    ]
    made = theme.figure(*bars, height=height, xaxis_title="prompt group, plan order")
    made.update_layout(barmode="overlay", showlegend=True)
    made.update_xaxes(dtick=step_of(len(names)), tickformat=",d")
    return made


def step_of(n: int, most: int = 12) -> int:
    """The least of 1, 2, 5, 10, 20, 50, … that marks ``n`` places with at most ``most`` ticks."""
    step = 1
    while n > step * most:
        step = {1: 2, 2: 5, 5: 10}[int(str(step)[0])] * 10 ** (len(str(step)) - 1)
    return step
