"""A choice between a few named things that stands in the URL."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from studio import state


def choose(label: str, options: Mapping[str, str], name: str) -> str:
    """A segmented control over ``options`` (key -> text) whose key is the URL parameter ``name``."""
    asked = state.query(name)
    standing = asked if asked in options else next(iter(options))
    key = f"choose-{name}"
    # The URL decides, whoever changed it; a key that stays keeps the control mounted.
    st.session_state[key] = standing
    st.segmented_control(
        label,
        list(options),
        format_func=options.__getitem__,
        required=True,
        label_visibility="collapsed",
        key=key,
        on_change=_chosen,
        args=(name, key),
    )
    return standing


def _chosen(name: str, key: str) -> None:
    # Before the page is drawn, not while: one click is one drawing.
    state.set_query(**{name: st.session_state[key], "page": None})
