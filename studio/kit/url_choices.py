"""Choices that stand in the URL: a few named things side by side, or one of many in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from studio import state


def choose(label: str, options: Mapping[str, str], name: str) -> str:
    """A segmented control over ``options`` (key -> text) whose key is the URL parameter ``name``."""
    asked = state.query(name)
    standing = asked if asked is not None and asked in options else next(iter(options))
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


def pick(label: str, options: Mapping[str, str], name: str, *, standing: str | None = None, **look: Any) -> str:
    """A list to choose from, ``options`` (key -> text), whose key is the URL parameter ``name``.

    ``standing`` is chosen where the URL says nothing: the first unless told. ``look`` goes to ``st.selectbox``.
    """
    first = standing if standing is not None and standing in options else next(iter(options))
    asked = state.query(name)
    chosen = asked if asked is not None and asked in options else first
    key = f"pick-{name}"
    st.session_state[key] = chosen
    st.selectbox(
        label,
        list(options),
        format_func=lambda one: options.get(one, one),
        key=key,
        on_change=_chosen,
        args=(name, key),
        **look,
    )
    return chosen


def _chosen(name: str, key: str) -> None:
    # Before the page is drawn, not while: one click is one drawing.
    state.set_query(**{name: st.session_state[key], "page": None})
