"""Small HTML tables and bars, for a few rows with coloured labels; rows of the pool use ``st.dataframe``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from studio.kit.figures import Tone
from studio.kit.format import escape, percent


def dot_label(label: str, tone: Tone) -> str:
    """A label with a coloured dot, as HTML."""
    return f'<span style="white-space:nowrap"><i class="cs-dot {tone}"></i>{escape(label)}</span>'


def html_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = (), wide: Sequence[int] = ()
) -> None:
    """Draw a table whose cells are HTML (``escape`` captured text first).

    ``numeric`` columns are right-aligned; ``wide`` columns leave room for paths and names without spaces.
    """
    head = "".join(f"<th{_align(place, numeric, wide)}>{escape(header)}</th>" for place, header in enumerate(headers))
    body = "".join(
        "<tr>" + "".join(f"<td{_align(place, numeric, wide)}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    st.html(f'<table class="cs-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')


def _align(place: int, numeric: Sequence[int], wide: Sequence[int]) -> str:
    return ' class="n"' if place in numeric else ' class="w"' if place in wide else ""


def bars(items: Iterable[tuple[str, int]], *, total: int | None = None, tones: dict[str, Tone] | None = None) -> None:
    """Horizontal bars of counts with their share of ``total`` (default: their sum), in the order given."""
    pairs = list(items)
    denominator = sum(n for _, n in pairs) if total is None else total
    top = max((n for _, n in pairs), default=0)
    cells = []
    for label, n in pairs:
        width = 100 * n / top if top else 0
        share = percent(n, denominator)
        tone = (tones or {}).get(label, "")
        cells.append(
            f'<div class="k" title="{escape(label)}">{escape(label)}</div>'
            f'<div class="track"><i class="{tone}" style="width:{width:.2f}%"></i></div>'
            f'<div class="n">{n:,}</div><div class="q">{share}</div>'
        )
    st.html(f'<div class="cs-bars">{"".join(cells)}</div>')
