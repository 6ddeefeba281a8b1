"""Numbers and charts on a page: the row of figures, definition lists, section heads, plotly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st

from studio.glossary import define
from studio.kit.format import escape

Tone = Literal["", "good", "warn", "bad", "muted"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a row: label, text, an optional second line, tone, and a glossary word or sentence as help."""

    label: str
    value: str
    sub: str = ""
    tone: Tone = ""
    help: str = ""


def figures_html(items: Iterable[Figure], *, dense: bool = False) -> str:
    """The row of figures as HTML; columns share the width and wrap on narrow screens."""
    cells = []
    for item in items:
        word = item.label.lower()
        tip = define(item.help) or item.help or define(word) or define(word.removesuffix("s")) or ""
        tooltip = f' title="{escape(tip)}"' if tip else ""
        cells.append(
            f'<div class="cs-fig {item.tone}"{tooltip}>'
            f'<div class="l">{escape(item.label)}</div><div class="v">{escape(item.value)}</div>'
            + (f'<div class="s">{escape(item.sub)}</div>' if item.sub else "")
            + "</div>"
        )
    return f'<div class="cs-figs{" dense" if dense else ""}">{"".join(cells)}</div>'


def figures(items: Sequence[Figure], *, dense: bool = False) -> None:
    """Draw a row of figures."""
    st.html(figures_html(items, dense=dense))


def section(title: str, help_text: str = "") -> None:
    """A heading inside a page with one line of help beside it."""
    st.html(
        f'<div class="cs-section"><h3>{escape(title)}</h3>'
        + (f"<span>{escape(help_text)}</span>" if help_text else "")
        + "</div>"
    )


def facts(rows: Iterable[tuple[str, Any]]) -> None:
    """A definition list: label left, value right; None is the dash."""
    cells = ""
    for label, value in rows:
        tip = define(label)
        tooltip = "" if tip is None else f' title="{escape(tip)}"'
        cells += f"<dt{tooltip}>{escape(label)}</dt><dd>{escape(value)}</dd>"
    st.html(f'<dl class="cs-facts">{cells}</dl>')


def plot(figure: Any, *, key: str, alt: str, height: int | None = None, **kwargs: Any) -> Any:
    """Draw a plotly figure in the studio's theme. A constant ``key`` lets live charts update in place."""
    if height is not None:
        figure.update_layout(height=height)
    # The browser colours a figure once. Another one takes the colours of the theme that the reader has switched to.
    if (watch := st.session_state.get("scheme")) is not None:
        figure.update_layout(meta={"scheme": watch["scheme"]})
    return st.plotly_chart(figure, key=key, alt=alt, theme="streamlit", config={"displayModeBar": False}, **kwargs)
