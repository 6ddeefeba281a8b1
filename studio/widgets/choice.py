"""A choice between a few named things that stands in the URL."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from studio import state


def choose(label: str, options: Mapping[str, str], name: str) -> str:
    """A segmented control over ``options`` (key -> text) whose key is the URL parameter ``name``."""
    asked = state.query(name)
    standing = asked if asked in options else next(iter(options))
    chosen = st.segmented_control(
        label,
        list(options),
        default=standing,
        format_func=options.__getitem__,
        required=True,
        label_visibility="collapsed",
        key=f"choose-{name}-{standing}",
    )
    if chosen != standing:
        state.set_query(**{name: chosen, "page": None})
        st.rerun()
    return standing
