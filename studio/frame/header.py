"""The head of every page: title, purpose, and the live status strip."""

from __future__ import annotations

import streamlit as st

from studio.frame.status import StatusLight, status_lights
from studio.kit.callouts import live
from studio.kit.format import escape
from studio.nav import PAGES


def page_header(key: str) -> None:
    """Draw the head of the page ``key`` of ``studio.nav.PAGES``."""
    info = PAGES[key]
    with st.container(key="page-head", horizontal=True, vertical_alignment="center"):
        st.html(f'<div class="cs-head"><h1>{escape(info.title)}</h1><p>{escape(info.purpose)}</p></div>')
        _status_strip()


@live(2.0)
def _status_strip() -> None:
    st.html(strip_html(status_lights()), width="content")


def strip_html(items: list[StatusLight]) -> str:
    """Status lights as one strip of chips."""
    chips = "".join(
        f'<span class="cs-light {item.tone}" title="{escape(item.detail)}"><i></i>{escape(item.label)}'
        f"<b>{escape(item.value)}</b></span>"
        for item in items
    )
    return f'<div class="cs-strip" role="status">{chips}</div>'
