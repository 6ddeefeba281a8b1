"""Selected rows, kept by uid across pages of a table, changes of filters, and the link from Inspect to Curate."""

from __future__ import annotations

import streamlit as st

from studio import state

URL_PICKS = 60


def selected_uids(level: str) -> set[str]:
    """The selected uids of this session, else those in the URL."""
    key = f"picked-{level}"
    if key not in st.session_state:
        # Pages spell the level in the URL differently: "trajectories" or "trajectory", "steps" or "step".
        named = state.query("level", "trajectory") or ""
        of_level = named[:4] == level[:4]
        st.session_state[key] = set(st.query_params.get_all("picked")) if of_level else set()
    kept: set[str] = st.session_state[key]
    return kept


def set_selected(level: str, uids: set[str]) -> None:
    """Store the selection for the other pages of the table; up to URL_PICKS uids also go into the URL."""
    st.session_state[f"picked-{level}"] = uids
    state.set_query(picked=sorted(uids) if 0 < len(uids) <= URL_PICKS else None)


def clear(level: str) -> None:
    """Clear the selection; the table gets a new key so that its check marks are cleared too."""
    set_selected(level, set())
    st.session_state["picked-epoch"] = epoch() + 1


def epoch() -> int:
    """Part of a table's key: changes when the selection is cleared."""
    return int(st.session_state.get("picked-epoch", 0))
