"""Live traffic as HTML: calls, tokens and latencies, redrawn every second.

A plotly chart is rebuilt when its data change, and is blank for a frame. On a page that redraws every second this
flickers. The live charts are therefore HTML bars; their style is in ``assets/studio.css`` (``.cs-live``), and their
tooltips are ``title`` attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WINDOW_S = 60
DECADES = (-3, 3)
"""Latencies from 1 ms to 1000 s; values beyond are counted in the outer bins."""
PER_DECADE = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: stacked parts from the bottom, each a CSS class and a height in units of the axis; and its tooltip."""

    parts: tuple[tuple[str, float], ...]
    tip: str


def call_rate(series: Sequence[dict[str, Any]]) -> str:
    """Calls per second, failed ones on top. ``series``: ``{at, calls, errors}`` of each whole second, oldest first."""
    bars = [
        Bar(
            (("good", entry["calls"] - entry["errors"]), ("bad", entry["errors"])),
            f"{entry['calls'] - entry['errors']:,} answered, {entry['errors']:,} failed",
        )
        for entry in series
    ]
    return _chart(bars, floor=4, x_labels=_seconds_ago(len(series)), empty="No call in the last minute")


def token_rate(series: Sequence[dict[str, Any]]) -> str:
    """Response tokens per second. ``series``: ``{at, tokens}`` of each whole second, oldest first."""
    bars = [Bar((("series2", entry["tokens"]),), f"{entry['tokens']:,} tokens") for entry in series]
    return _chart(bars, floor=40, x_labels=_seconds_ago(len(series)), empty="No token in the last minute")


def latencies(seconds: Sequence[float]) -> str:
    """Distribution of call latencies in seconds; the axis is logarithmic."""
    counts = latency_bins(seconds)
    edges = [DECADES[0] + place / PER_DECADE for place in range(len(counts) + 1)]
    used = [place for place, n in enumerate(counts) if n]
    # Whole decades around the values, at least two, so that the axis rarely changes.
    first = (used[0] // PER_DECADE if used else 1) * PER_DECADE
    last = max((used[-1] // PER_DECADE + 1) * PER_DECADE if used else 0, first + 2 * PER_DECADE)
    last = min(last, len(counts))
    bars = [
        Bar((("series3", counts[place]),), f"{counts[place]:,} calls, {_text(10**low)} to {_text(10**high)}")
        for place, (low, high) in enumerate(pairwise(edges))
        if first <= place < last
    ]
    marks = [(place - first) / (last - first) for place in range(first, last + 1, PER_DECADE)]
    names = [_text(10 ** edges[place]) for place in range(first, last + 1, PER_DECADE)]
    return _chart(bars, floor=4, x_labels=list(zip(marks, names, strict=True)), empty="No call yet")


def latency_bins(seconds: Sequence[float]) -> list[int]:
    """Counts per quarter decade from 1 ms to 1000 s, int ``[24]``."""
    counts = [0] * ((DECADES[1] - DECADES[0]) * PER_DECADE)
    for value in seconds:
        place = math.floor((math.log10(value) - DECADES[0]) * PER_DECADE) if value > 0 else 0
        counts[min(max(place, 0), len(counts) - 1)] += 1
    return counts


def axis_top(value: float) -> float:
    """The smallest of 1, 2, 4, 6, 8 times a power of ten that is at least ``value``.

    >>> [axis_top(value) for value in (3, 4, 47, 130, 0.5)]
    [4, 4, 60, 200, 0.6]
    """
    power = 10 ** math.floor(math.log10(value))
    factor = next(factor for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))
    top: float = factor * power
    return round(top, 12) if power < 1 else top


def _chart(bars: Sequence[Bar], *, floor: float, x_labels: Sequence[tuple[float, str]], empty: str) -> str:
    """Bars over a vertical axis from 0. ``x_labels``: share of the width, text. ``empty``: text instead of bars."""
    top = axis_top(max([floor, *(sum(height for _, height in bar.parts) for bar in bars)]))
    columns = []
    for bar in bars:
        parts = "".join(
            f'<b class="{tone}" style="height:{100 * height / top:.2f}%"></b>' for tone, height in bar.parts if height
        )
        columns.append(f'<div title="{bar.tip}">{parts}</div>')
    lines = "".join(f'<i style="bottom:{share}%"></i>' for share in (0, 50, 100))
    ys = "".join(f'<span style="bottom:{50 * half}%">{_short(top * half / 2)}</span>' for half in (0, 1, 2))
    xs = "".join(f'<span style="left:{100 * share:.2f}%">{text}</span>' for share, text in x_labels)
    note = "" if any(height for bar in bars for _, height in bar.parts) else f"<span>{empty}</span>"
    return (
        f'<div class="cs-live"><div class="y">{ys}</div>'
        f'<div class="p">{lines}<div class="bars">{"".join(columns)}</div>{note}</div><div class="x">{xs}</div></div>'
    )


def _seconds_ago(n_seconds: int) -> list[tuple[float, str]]:
    """Labels every 15 seconds before the newest one."""
    width = max(n_seconds, 1)
    return [((width - back) / width, f"−{back} s") for back in (60, 45, 30, 15) if back <= width]


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _text(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
