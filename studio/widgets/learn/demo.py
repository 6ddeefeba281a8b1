"""The learning demo: the button that starts it, its progress, and what it teaches."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.errors import StudioError
from studio import state
from studio.kit.callouts import show_error

UPDATES = 15
WHAT = (
    "The demo's policy has 0.35 million parameters. It was trained on a log in which most tasks are done with a bad "
    "habit: writing without reading, stopping half way, overwriting a file. It can do every task already, and what it "
    "learns here is to give up the habits. It does not learn new skills."
)


def learn_button(*, key: str, primary: bool = False, control: bool = False) -> None:
    """The button that starts the learning demo and opens Learn."""
    if st.button(
        "Watch a policy learn",
        icon=":material/trending_up:",
        key=key,
        type="primary" if primary else "secondary",
        help=f"Trains a small policy on this machine through the studio: {UPDATES} updates, a few minutes.",
    ):
        try:
            with st.spinner("Starting the policy's engine…", show_time=True):
                state.service().learning.start(updates=UPDATES, control="shuffle" if control else None)
        except StudioError as error:
            show_error(error)
            return
        state.goto("learn")


def demo_line(status: dict[str, Any]) -> None:
    """Progress of the running demo with a stop button, or its start button and the reason of its failure."""
    if status["running"]:
        run = status["run"]
        name = "Starting" if run is None else f"Control: {run['control']}" if run["control"] else "Learning demo"
        took = status.get("seconds_update")
        left, right = st.columns([6, 1], vertical_alignment="center")
        left.progress(
            min(1.0, status["update"] / max(1, status["updates"])),
            text=f"{name}: update {status['update']} of {status['updates']}"
            + (f", {took:.1f} s each" if took is not None else ""),
        )
        if right.button("Stop", icon=":material/stop:", key="learn-stop", width="stretch"):
            state.service().learning.stop()
            st.rerun()
        return
    if status["error"]:
        show_error(
            StudioError(f"The learning demo stopped: {status['error']}", hint="See its folder: learn/*/trainer.log")
        )
