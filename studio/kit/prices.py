"""Prices of tokens, kept in the URL: reports, tasks and the comparison of runs use the same."""

from __future__ import annotations

import math

import streamlit as st

from core.report import Prices
from studio import state

PROMPT, SAMPLED = "price_prompt", "price_sampled"


def price_input(label: str, name: str) -> None:
    """The field of one price, US dollars for a million tokens; empty means unknown."""
    key = f"prices-{name}"
    st.session_state[key] = _price(name)
    st.number_input(
        label, min_value=0.0, value=None, placeholder="unknown", key=key, on_change=_changed, args=(name, key)
    )


def prices_of_url() -> Prices | None:
    """Both prices; None unless both are known."""
    prompt, sampled = _price(PROMPT), _price(SAMPLED)
    return None if prompt is None or sampled is None else Prices(prompt, sampled)


def _changed(name: str, key: str) -> None:
    value = st.session_state[key]
    state.set_query(**{name: None if value is None else f"{value:g}"})


def _price(name: str) -> float | None:
    try:
        value = float(state.query(name) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
