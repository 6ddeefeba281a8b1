"""Picked rows: kept by uid, so that they survive paging, filtering, and the way from Inspect to Curate."""

from __future__ import annotations

import streamlit as st

from studio import state

URL_PICKS = 60


def picks(level: str) -> set[str]:
    """The uids picked so far: this session's, else the URL's."""
    key = f"picked-{level}"
    if key not in st.session_state:
        # The URL's level is "trajectories" or "trajectory", "steps" or "step", by page; without one it is the first.
        named = state.query("level", "trajectory") or ""
        own = named[:4] == level[:4]
        st.session_state[key] = set(st.query_params.get_all("picked")) if own else set()
    kept: set[str] = st.session_state[key]
    return kept


def remember(level: str, uids: set[str]) -> None:
    """Keep the picks for the other pages of the table; few enough also go into the URL."""
    st.session_state[f"picked-{level}"] = uids
    state.set_query(picked=sorted(uids) if 0 < len(uids) <= URL_PICKS else None)


def clear(level: str) -> None:
    """Forget the picks; the table is mounted anew so that its check marks go too."""
    remember(level, set())
    st.session_state["picked-epoch"] = epoch() + 1


def epoch() -> int:
    """Part of a picking table's key: changes when the picks are forgotten."""
    return int(st.session_state.get("picked-epoch", 0))
