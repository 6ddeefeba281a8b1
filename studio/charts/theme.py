"""The chart template, and colours for light and dark mode.

The browser replaces these placeholder colours by the palette of ``.streamlit/config.toml`` when a chart is drawn
with Streamlit's theme, so figures do not depend on the mode. The palette's first seven colours are series,
the last three are reserved: warning, bad, muted.
"""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go

SERIES = tuple(f"#00000{place}" for place in range(1, 8))
WARN, BAD, MUTED = "#000008", "#000009", "#000010"
GOOD = SERIES[0]
SEQUENTIAL = [[place / 9, f"#0000{11 + place}"] for place in range(10)]
DIVERGING = [[place / 9, f"#0000{21 + place}"] for place in range(10)]

FONT_SIZE, TICK_SIZE = 12, 11


def escape(text: Any) -> str:
    """Captured text escaped for a name, label or tooltip, which plotly renders as HTML with links."""
    return html.escape(str(text), quote=False)


def integer_ticks(chart: go.Figure, low: float, high: float) -> None:
    """Ticks at integers only, for an x axis of counts or versions."""
    chart.update_xaxes(dtick=max(1, round((high - low) / 8)), tick0=0, tickformat=",d")


def figure(*traces: Any, height: int = 220, **layout: Any) -> go.Figure:
    """A figure in the studio's template: narrow margins, light grid, no title."""
    chart = go.Figure(data=list(traces))
    chart.update_layout(
        height=height,
        margin={"l": 4, "r": 8, "t": 8, "b": 4},
        font={"size": FONT_SIZE},
        showlegend=False,
        bargap=0.08,
        hovermode="closest",
        hoverlabel={"font": {"size": FONT_SIZE}},
        legend={
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "title": None,
            "font": {"size": TICK_SIZE},
        },
        uirevision="keep",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    axis = {
        "automargin": True,
        "zeroline": False,
        "ticks": "",
        "title": {"standoff": 8},
        "tickfont": {"size": TICK_SIZE},
    }
    chart.update_xaxes(showgrid=False, **axis)
    chart.update_yaxes(showgrid=True, nticks=5, **axis)
    chart.update_layout(**layout)
    return chart
