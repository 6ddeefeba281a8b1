"""Distributions and funnels of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from studio.charts import theme
from studio.kit.format import percent

HOVER_BIN = "%{customdata[0]:.4g} to %{customdata[1]:.4g}"


def histogram(
    lows: Sequence[float], highs: Sequence[float], counts: Sequence[int], *, noun: str, height: int = 220
) -> go.Figure:
    """Bars over equal bins. ``lows``/``highs``: bin edges ``[B]``, ``counts``: int ``[B]``."""
    widths = [high - low for low, high in zip(lows, highs, strict=True)]
    span = max(widths, default=0.0) or 0.05
    chart = theme.figure(
        go.Bar(
            x=[(low + high) / 2 for low, high in zip(lows, highs, strict=True)],
            y=list(counts),
            width=[(width or span) * 0.94 for width in widths],
            marker={"color": theme.GOOD},
            customdata=list(zip(lows, highs, strict=True)),
            hovertemplate=f"%{{y:,}} {noun}<br>%{{customdata[0]:.3g}} to %{{customdata[1]:.3g}}<extra></extra>",
        ),
        height=height,
    )
    chart.update_yaxes(rangemode="tozero")
    return chart


def funnel(stages: Sequence[tuple[str, int]], *, notes: Sequence[str], height: int = 220) -> go.Figure:
    """Counts that reach each stage, as bars with their share of the first stage.

    ``stages``: label and count, first to last; ``notes``: what each stage means, for the tooltip.
    """
    first = stages[0][1] if stages else 0
    labels = [label for label, _ in stages]
    counts = [n for _, n in stages]
    chart = theme.figure(
        go.Bar(
            y=labels,
            x=counts,
            orientation="h",
            marker={"color": theme.GOOD, "opacity": [1 - 0.11 * place for place in range(len(stages))]},
            customdata=list(notes),
            hovertemplate="%{x:,} steps<br>%{customdata}<extra></extra>",
            width=0.62,
        ),
        height=height,
    )
    # Annotations, not the bars' text: plotly fails on a click on a selectable bar with text.
    for label, n in stages:
        text = f"{n:,}  ·  {percent(n, first)}" if first else f"{n:,}"
        chart.add_annotation(x=n, y=label, text=text, showarrow=False, xanchor="left", xshift=6)
    chart.update_xaxes(visible=False, range=[0, max(first, 1) * 1.42])
    chart.update_yaxes(autorange="reversed", showgrid=False, nticks=None, tickfont={"size": theme.FONT_SIZE})
    return chart


def stacked(rows: Sequence[dict[str, Any]], *, noun: str, parts: Sequence[str | None], height: int = 200) -> go.Figure:
    """Stacked bars over bins, one colour per part.

    ``rows``: ``{"low", "high", "part", "n_steps"}`` of ``pool.stats.spread``; ``parts``: the parts in the order of
    their colours, so that several charts use the same colours; None means unknown.
    """
    chart = theme.figure(height=height)
    apart = len(parts) > 1
    for place, part in enumerate(parts):
        part_rows = [row for row in rows if row["part"] == part]
        if not part_rows:
            continue
        name = "unknown" if part is None else theme.escape(part)
        prefix = f"{name}: " if apart else ""
        chart.add_trace(
            go.Bar(
                x=[(row["low"] + row["high"]) / 2 for row in part_rows],
                y=[row["n_steps"] for row in part_rows],
                width=[(row["high"] - row["low"]) * 0.94 for row in part_rows],
                name=name,
                # If it is the only part, it is all rows, not the unknown ones.
                marker={"color": theme.MUTED if part is None and apart else theme.SERIES[place % len(theme.SERIES)]},
                customdata=[(row["low"], row["high"]) for row in part_rows],
                hovertemplate=f"{prefix}%{{y:,}} {noun}<br>{HOVER_BIN}<extra></extra>",
            )
        )
    chart.update_layout(barmode="stack", bargap=0)
    if rows and all(row["high"] - row["low"] == 1 for row in rows):
        theme.integer_ticks(chart, min(row["low"] for row in rows), max(row["high"] for row in rows))
    chart.update_yaxes(rangemode="tozero")
    return chart
