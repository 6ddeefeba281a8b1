"""The demo agent: start it, and watch it run."""

from __future__ import annotations

import streamlit as st

from studio import state
from studio.widgets.callouts import live, show_error
from studio.widgets.format import count

N_ROLLOUTS = 4


def start_demo() -> None:
    """Start the demo agent in the background; the engine it talks to takes a moment the first time."""
    with st.spinner("Starting the demo engine…"):
        state.service().run_demo(n_rollouts=N_ROLLOUTS)


def demo_progress() -> None:
    """A line with the start button, and the progress of a run while there is one."""
    _line()


@live(1.0)
def _line() -> None:
    status = state.service().demo_status()
    done, total = status["done"], status["total"]
    with st.container(horizontal=True, vertical_alignment="center", key="demo-line"):
        if st.button(
            "Run the demo agent",
            icon=":material/play_arrow:",
            disabled=status["running"],
            key="demo-run",
            help=f"{N_ROLLOUTS} rollouts of a small tool loop against the shipped scripted engine.",
        ):
            start_demo()
            st.rerun(scope="fragment")
        st.page_link("pages/overview.py", label="Connect an agent", icon=":material/power:")
        if status["running"]:
            st.progress(done / total if total else 0.0, text=f"Demo agent: {count(done)} of {count(total)} rollouts")
        elif status["error"] is None and total:
            st.caption(f"Demo agent: {count(done)} of {count(total)} rollouts done.")
    if status["error"]:
        show_error(RuntimeError(status["error"]))
