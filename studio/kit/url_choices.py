"""Choices that are kept in the URL: a segmented control, or a select box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from core.errors import StudioError
from studio import state
from studio.kit.callouts import show_error
from studio.kit.format import escape_markdown


def segmented_choice(label: str, options: Mapping[str, str], name: str, *, keep_page: bool = False) -> str:
    """A segmented control over ``options`` (key -> text) whose key is the URL parameter ``name``.

    Another choice shows another list, from its first page; ``keep_page`` keeps the page number, for the way back.
    """
    requested = state.query(name)
    current = requested if requested is not None and requested in options else next(iter(options))
    key = f"choose-{name}"
    # The URL is the only source of the value; a constant key keeps the control mounted.
    st.session_state[key] = current
    st.segmented_control(
        label,
        list(options),
        format_func=options.__getitem__,
        required=True,
        label_visibility="collapsed",
        key=key,
        on_change=_chosen,
        args=(name, key, keep_page),
    )
    return current


def list_choice(label: str, options: Mapping[str, str], name: str, *, default: str | None = None, **look: Any) -> str:
    """A select box over ``options`` (key -> text) whose key is the URL parameter ``name``.

    ``default`` applies when the URL has no valid value (None: the first option). ``look`` goes to ``st.selectbox``.
    """
    first = default if default is not None and default in options else next(iter(options))
    requested = state.query(name)
    chosen = requested if requested is not None and requested in options else first
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


def run_choice(labels: Mapping[str, str]) -> str:
    """A select box over runs (uid -> text, the newest first), kept in the URL; an error names an unknown run of it."""
    requested = state.query("run")
    if requested is not None and requested not in labels:
        show_error(StudioError(f"There is no run {requested}.", field="run", hint="The newest one is shown."))
    texts = {uid: escape_markdown(text) for uid, text in labels.items()}
    return list_choice("Run", texts, "run", label_visibility="collapsed")


def _chosen(name: str, key: str, keep_page: bool = False) -> None:
    # A callback runs before the page is drawn, so one click draws it once.
    state.set_query(**{name: st.session_state[key]})
    if not keep_page:
        state.set_query(page=None)
