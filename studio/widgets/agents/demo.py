"""The demo: load the demo data, start the demo agent, show its progress."""

from __future__ import annotations

import streamlit as st

from core.errors import StudioError
from studio import state
from studio.kit.callouts import live, show_error
from studio.kit.format import count
from studio.widgets.learn.demo import learn_button

N_ROLLOUTS = 4


def start_demo() -> None:
    """Start the demo agent in the background; its engine takes some seconds to start the first time."""
    with st.spinner("Starting the demo engine…", show_time=True):
        state.service().demo.start(N_ROLLOUTS)


def demo_button(*, key: str, disabled: bool = False) -> None:
    """The button that starts the demo agent and opens Collect."""
    if st.button(
        "Run the demo agent live",
        icon=":material/play_arrow:",
        key=key,
        disabled=disabled,
        help=f"{N_ROLLOUTS} rollouts of each demo task: a small tool loop against the shipped scripted engine.",
    ):
        start_demo()
        state.goto("collect")


def demo_actions(key: str) -> None:
    """Buttons that fill an empty pool: load the demo steps, run the demo agent, or train the demo's policy."""
    with st.container(horizontal=True, horizontal_alignment="center", gap="small", key=f"demo-actions-{key}"):
        if st.button("Load demo data", icon=":material/download:", type="primary", key=f"{key}-load"):
            with st.spinner("Loading demo data…"):
                state.service().load_demo()
            st.rerun()
        demo_button(key=f"{key}-run")
        learn_button(key=f"{key}-learn")


@live(1.0)
def demo_control() -> None:
    """The start button, or the progress of a run."""
    status = state.service().demo.status()
    done, total = status["done"], status["total"]
    if status["running"]:
        st.progress(done / total if total else 0.0, text=f"Demo agent: {count(done)} of {count(total)} rollouts")
        return
    demo_button(key="demo-run")
    if status["error"]:
        show_error(StudioError(f"The demo agent stopped: {status['error']}", hint="See the doctor on Settings."))
