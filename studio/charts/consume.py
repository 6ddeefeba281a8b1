"""Charts of consumption: batches over time, staleness, trainer metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

from studio.charts import theme

TONES = {"acked": theme.GOOD, "leased": theme.SERIES[1], "released": theme.MUTED, "expired": theme.WARN}
"""State of a batch -> its colour."""
FEW_BATCHES = 8
"""The x axis has room for at least so many."""
SYNC_LINES = 400
"""Maximum number of weight syncs drawn; more would be less than a pixel apart."""


def _time(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def batches_over_time(rows: Sequence[Mapping[str, Any]], syncs: Sequence[Any], *, height: int = 200) -> go.Figure:
    """A dot per batch: lease time, number of steps, state as colour. Lines are weight syncs.

    Args:
        rows: ``pool.consumption.batches``.
        syncs: ``core.batch.pace.Sync``.
        height: pixels.
    """
    chart = theme.figure(height=height, yaxis_title="steps")
    for state, tone in TONES.items():
        chosen = [row for row in rows if row["state"] == state]
        chart.add_scatter(
            x=[_time(row["leased_at"]) for row in chosen],
            y=[row["n_steps"] for row in chosen],
            name=state,
            mode="markers",
            marker={"size": 9, "color": tone},
            customdata=[[row["batch_uid"], theme.escape(row["consumer"]), row["n_groups"]] for row in chosen],
            hovertemplate="%{y:,} steps, %{customdata[2]:,} groups<br>%{customdata[1]}<br>%{x}<extra>"
            + state
            + "</extra>",
        )
    since = min((row["leased_at"] for row in rows), default=None)
    ends = [sync.finished_at for sync in syncs if sync.finished_at is not None]
    if since is not None:  # earlier syncs would only compress the dots
        ends = [at for at in ends if at >= since]
    if ends:
        # One trace for all, on a separate axis: many single shapes take plotly minutes.
        each = -(-len(ends) // SYNC_LINES)
        places = [_time(at) for at in ends[::-1][::each]]
        chart.add_scatter(
            x=[x for at in places for x in (at, at, None)],
            y=[0, 1, None] * len(places),
            yaxis="y2",
            name="weight sync" if each == 1 else f"weight sync, 1 in {each}",
            mode="lines",
            line={"width": 1, "dash": "dot", "color": theme.MUTED},
            hoverinfo="skip",
        )
        chart.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    chart.update_layout(showlegend=True)
    chart.update_yaxes(rangemode="tozero")
    return chart


def staleness(rows: Sequence[Mapping[str, Any]], *, height: int = 200) -> go.Figure:
    """Staleness of each batch in order of lease: the mean as a dot, the oldest step as a bar."""
    known = [row for row in reversed(rows) if row["staleness_max"] is not None]
    places = list(range(1, len(known) + 1))
    data = [[row["batch_uid"], theme.escape(row["consumer"]), row["policy_version"]] for row in known]
    chart = theme.figure(
        go.Bar(
            x=places,
            y=[row["staleness_max"] for row in known],
            name="oldest step",
            marker={"color": theme.MUTED, "opacity": 0.5},
            customdata=data,
            hovertemplate="oldest step %{y:.3g} behind version %{customdata[2]}<br>%{customdata[1]}<extra></extra>",
        ),
        go.Scatter(
            x=places,
            y=[row["staleness_mean"] for row in known],
            name="mean",
            mode="markers",
            marker={"size": 8, "color": theme.GOOD},
            customdata=data,
            hovertemplate="mean %{y:.3g} behind version %{customdata[2]}<br>%{customdata[1]}<extra></extra>",
        ),
        height=height,
        xaxis_title="batch, in order of lease",
        yaxis_title="versions behind",
    )
    chart.update_layout(showlegend=True)
    chart.update_xaxes(range=[0.5, max(len(known), FEW_BATCHES) + 0.5])  # one batch alone would be as wide as the chart
    theme.integer_ticks(chart, 0, max(len(known), FEW_BATCHES))
    chart.update_yaxes(rangemode="tozero")
    return chart


def metric(runs: Mapping[str, Sequence[Mapping[str, Any]]], name: str, *, height: int = 200) -> go.Figure:
    """One trainer metric over updates, or in order of posting: a line per run of a trainer.

    Args:
        runs: ``core.batch.pace.runs_of`` the rows of ``pool.batches.metrics`` with this name.
        name: of the metric.
        height: pixels.
    """
    known = {run: [row for row in rows if row["value"] is not None] for run, rows in runs.items()}
    by_update = all(row["update_index"] is not None for rows in known.values() for row in rows)
    chart = theme.figure(height=height, xaxis_title="update" if by_update else "posting")
    for place, (run, rows) in enumerate(known.items()):
        chart.add_scatter(
            x=[row["update_index"] for row in rows] if by_update else list(range(1, len(rows) + 1)),
            y=[row["value"] for row in rows],
            name=theme.escape(run),
            mode="lines+markers",
            line={"width": 1.5, "color": theme.SERIES[place % len(theme.SERIES)]},
            marker={"size": 7},
            customdata=[[row["batch_uid"]] for row in rows],
            hovertemplate=f"{theme.escape(name)} %{{y:.4g}}<br>at %{{x}}<extra>{theme.escape(run)}</extra>",
        )
    chart.update_layout(showlegend=len(known) > 1)
    return chart


DIFFERENCES = {"mean": "mean", "greatest": "largest", "kl": "KL"}
"""Column of ``pool.consumption.differences`` -> its name in the chart."""


def differences(rows: Sequence[Mapping[str, Any]], column: str = "mean", *, height: int = 200) -> go.Figure:
    """Captured against recomputed log-probs by version in force, a line for each staleness.

    Args:
        rows: ``pool.consumption.differences``.
        column: in ``DIFFERENCES``.
        height: pixels.
    """
    unit = "nats per token" if column == "kl" else "nats"
    chart = theme.figure(height=height, xaxis_title="policy version in force", yaxis_title=unit)
    for place, stale in enumerate(sorted({row["staleness"] for row in rows})):
        chosen = [row for row in rows if row["staleness"] == stale]
        tone = theme.GOOD if stale == 0 else theme.SERIES[1 + (place - 1) % (len(theme.SERIES) - 1)]
        chart.add_scatter(
            x=[row["version"] for row in chosen],
            y=[row[column] for row in chosen],
            name="same version" if stale == 0 else f"{stale} behind",
            mode="lines+markers",
            line={"width": 1.5, "color": tone},
            marker={"size": 7},
            customdata=[[row["batch_uid"], row["sampled_version"], row["n_tokens"]] for row in chosen],
            hovertemplate=f"{DIFFERENCES[column]} %{{y:.3g}} {unit}<br>sampled by version %{{customdata[1]}}, "
            "%{customdata[2]:,} tokens<extra></extra>",
        )
    chart.update_layout(showlegend=True)
    chart.update_yaxes(rangemode="tozero")
    return chart
