"""Charts of a plan: histograms of reward and advantage, rewards and tokens by prompt group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from core.credit.types import Floats, Ints
from studio.charts import theme


def value_histogram(
    values: Sequence[float | None], *, noun: str, bins: int = 24, height: int = 180, counted: bool = False
) -> go.Figure:
    """Histogram of the known values; unknown ones are counted in the corner, never drawn as 0.

    ``counted``: the values are integers, so each has its own bar when there are few.
    """
    array = np.array(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    chart = theme.figure(height=height)
    if len(known):
        low, high = float(known.min()), float(known.max())
        integers = counted and high - low < bins
        if integers:
            bins, low, high = int(high - low) + 1, low - 0.5, high + 0.5
        elif low == high:
            low, high = low - 0.5, high + 0.5
        counts, edges = np.histogram(known, bins=bins, range=(low, high))
        lows = edges[:-1] + 0.5 if integers else edges[:-1]
        between = "%{customdata[0]:d}" if integers else "%{customdata[0]:.3g} to %{customdata[1]:.3g}"
        chart.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            width=np.diff(edges) * 0.94,
            marker={"color": theme.GOOD},
            customdata=np.stack([lows, edges[1:]], axis=1),
            hovertemplate=f"%{{y:,}} {noun}<br>{between}<extra></extra>",
        )
        if counted:
            theme.integer_ticks(chart, low, high)
    n_unknown = len(values) - len(known)
    if n_unknown:
        chart.add_annotation(
            text=f"{n_unknown:,} unknown", x=1, y=1, xref="paper", yref="paper", showarrow=False, xanchor="right"
        )
    chart.update_yaxes(rangemode="tozero")
    return chart


MAX_DOTS = 2000
"""Maximum number of dots in a chart; more would overlap."""
CELLS = (120, 24)
"""Columns and rows of a density."""


def group_strip(
    groups: Sequence[str],
    rewards: Sequence[float | None],
    advantages: Sequence[float | None],
    uids: Sequence[str],
    *,
    first: int = 0,
    height: int = 240,
) -> go.Figure:
    """One dot per trajectory: its group on x, its reward on y, its advantage as colour (red below 0, teal above).

    Siblings with equal rewards are placed side by side in their group's column. All four are ``[n]``, in
    plan order; unknown rewards are left out. ``first`` is the place of the first group.
    """
    names = list(dict.fromkeys(groups))
    place = {name: index for index, name in enumerate(names, first)}
    kept = [i for i, reward in enumerate(rewards) if reward is not None]
    tied_members: dict[tuple[str, float | None], list[int]] = {}
    for i in kept:
        tied_members.setdefault((groups[i], rewards[i]), []).append(i)
    offset = {
        i: 0.0 if len(tied) == 1 else 0.7 * at / (len(tied) - 1) - 0.35
        for tied in tied_members.values()
        for at, i in enumerate(tied)
    }
    known = [abs(value) for value in advantages if value is not None]
    reach = max(known, default=1.0) or 1.0
    shades = [advantages[i] if advantages[i] is not None else 0.0 for i in kept]
    chart = theme.figure(
        go.Scatter(
            x=[place[groups[i]] + offset[i] for i in kept],
            y=[rewards[i] for i in kept],
            mode="markers",
            marker={
                "size": 9 if len(names) <= 20 else 6,
                "color": shades,
                "colorscale": theme.DIVERGING,
                "cmin": -reach,
                "cmax": reach,
                "line": {"width": 1, "color": theme.MUTED},
            },
            customdata=[
                [
                    theme.escape(uids[i]),
                    theme.escape(groups[i]),
                    "none" if advantages[i] is None else f"{advantages[i]:+.3f}",
                ]
                for i in kept
            ],
            hovertemplate="%{customdata[0]}<br>group %{customdata[1]}<br>reward %{y:.3g}<br>"
            "advantage %{customdata[2]}<extra></extra>",
        ),
        height=height,
        xaxis_title="prompt group, plan order",
        yaxis_title="reward",
    )
    chart.update_xaxes(range=[first - 0.5, first + max(len(names) - 0.5, 0.5)])
    group_ticks(chart, names, first)
    return chart


MAX_NAMES, NAME_CHARS = 16, 18
"""Up to so many groups are named on an axis, by so many characters; more are numbered."""


def group_ticks(chart: go.Figure, names: Sequence[str], first: int = 0) -> None:
    """Ticks of an x axis of prompt groups: their names, or the numbers in plan order when there are many."""
    if len(names) > MAX_NAMES:
        chart.update_xaxes(dtick=tick_step(len(names)), tickformat=",d")
        return
    short = [name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}…" for name in names]
    places = list(range(first, first + len(names)))
    chart.update_xaxes(tickmode="array", tickvals=places, ticktext=[theme.escape(name) for name in short], title=None)


def group_density(group: Ints, rewards: Floats, advantages: Floats, *, height: int = 240) -> go.Figure:
    """Density of trajectories: consecutive groups on x, rewards on y, the count as colour.

    Args:
        group: int64 [n], place of each trajectory's group in plan order.
        rewards: float64 [n]; NaN is unknown and left out.
        advantages: float64 [n]; NaN is unassigned, and left out of a cell's mean.
        height: pixels.
    """
    known = ~np.isnan(rewards)
    n_groups = int(group.max(initial=-1)) + 1
    each = max(-(-n_groups // CELLS[0]), 1)
    column = group[known] // each
    low, high = (float(rewards[known].min()), float(rewards[known].max())) if known.any() else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / (CELLS[1] - 1)  # the lowest and highest reward are the centres of the outer rows
    row = np.rint((rewards[known] - low) / width).astype(np.int64)
    shape = (CELLS[1], -(-n_groups // each) or 1)
    counts, sums, n_given = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape, np.int64)
    np.add.at(counts, (row, column), 1)
    assigned = ~np.isnan(advantages[known])
    np.add.at(sums, (row[assigned], column[assigned]), advantages[known][assigned])
    np.add.at(n_given, (row[assigned], column[assigned]), 1)
    means = np.where(n_given > 0, sums / np.maximum(n_given, 1), np.nan)
    firsts = np.arange(shape[1]) * each
    lasts = np.minimum(firsts + each, n_groups) - 1
    tooltips = [
        [
            f"groups {a:,} to {b:,}<br>{counts[r, c]:,} trajectories<br>mean advantage "
            + ("none" if np.isnan(means[r, c]) else f"{means[r, c]:+.3f}")
            for c, (a, b) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True))
        ]
        for r in range(shape[0])
    ]
    chart = theme.figure(
        go.Heatmap(
            x=(firsts + lasts) / 2,
            y=low + width * np.arange(shape[0]),
            z=np.where(counts > 0, counts, np.nan),
            zmin=0,
            zmax=int(counts.max(initial=1)),
            colorscale=theme.SEQUENTIAL,
            text=tooltips,
            hoverongaps=False,
            hovertemplate="%{text}<br>reward about %{y:.3g}<extra></extra>",
            colorbar={"thickness": 8, "outlinewidth": 0, "tickfont": {"size": theme.TICK_SIZE}, "nticks": 4},
        ),
        height=height,
        xaxis_title="prompt group, plan order",
        yaxis_title="reward",
    )
    chart.update_xaxes(dtick=tick_step(n_groups), tick0=0, tickformat=",d")
    return chart


MAX_BARS = 300
"""Maximum number of bars; more would be thinner than a pixel, and browsers draw only some of those."""


def groups_per_bar(n: int) -> int:
    """Number of consecutive groups per bar."""
    return -(-n // MAX_BARS)


def group_tokens(names: Sequence[str], tokens: Ints, packed: Ints, *, height: int = 240) -> go.Figure:
    """Tokens of each group before and after sharing prefixes: two bars per group (or per ``groups_per_bar``).

    int64 ``[g]`` each.
    """
    each = groups_per_bar(len(names))
    places = np.arange(0, len(names), each)
    counts = np.diff(np.append(places, len(names)))
    ends = [names[place + n - 1] for place, n in zip(places.tolist(), counts.tolist(), strict=True)]
    tooltips = [
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
            customdata=[theme.escape(text) for text in tooltips],
            hovertemplate=f"%{{customdata}}<br>%{{y:,.0f}} tokens {name}<extra></extra>",
        )
        for name, values, colour in (("separate", tokens, theme.MUTED), ("packed", packed, theme.GOOD))
    ]
    chart = theme.figure(*bars, height=height, xaxis_title="prompt group, plan order")
    chart.update_layout(barmode="overlay", showlegend=True)
    group_ticks(chart, names)
    return chart


def tick_step(n: int, max_ticks: int = 12) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that gives at most ``max_ticks`` ticks for ``n`` items."""
    step = 1
    while n > step * max_ticks:
        step = {1: 2, 2: 5, 5: 10}[int(str(step)[0])] * 10 ** (len(str(step)) - 1)
    return step
