"""The Synthesis page: start a run, watch it, inspect and correct the rows of every stage, store the pack."""

from __future__ import annotations

import streamlit as st

from core.synthesis import SynthesisRun
from studio import kit, state
from studio.frame.header import page_header
from studio.kit.url_choices import run_choice, segmented_choice
from studio.widgets.synthesis.pack import pack_view
from studio.widgets.synthesis.prompts import prompts_view
from studio.widgets.synthesis.rows import rows_view
from studio.widgets.synthesis.run import run_buttons, run_figures, stage_table
from studio.widgets.synthesis.start import start_form

LIVE_S, IDLE_S = 1.5, 10.0
VIEWS = {"rows": "Rows", "prompts": "Prompts", "pack": "Pack"}


def synthesis_page() -> None:
    """The newest run, or the one in the URL; the form alone without any."""
    host = state.service().synthesis
    runs = {run.settings.run: run for run in host.store.all()}
    if not runs:
        kit.empty_state(
            "No run yet",
            "Models write tasks, each with a checker that is shown to hold: 0 on the untouched workspace, more on a "
            "reference solution, less on wrong results. Start here, or with `claw-studio synthesise start`.",
            icon="experiment",
        )
        start_form()
        return
    uid = run_choice({uid: label_of(run) for uid, run in runs.items()})
    with st.expander("New run", icon=":material/add:"):
        start_form()
    run = runs[uid]
    running = host.status(run)["progress"]["in_progress"]
    st.session_state["synthesis-running"] = running
    kit.live(LIVE_S if running else IDLE_S)(live_part)(run)
    view = segmented_choice("View", VIEWS, "view")
    with kit.error_boundary():
        if view == "rows":
            rows_view(run, in_progress=running)
        elif view == "prompts":
            prompts_view(run)
        else:
            pack_view(run)


def label_of(run: SynthesisRun) -> str:
    """A run as one line of the list."""
    settings = run.settings
    return f"{settings.run}  ·  {settings.route} route  ·  {settings.model}  ·  {kit.counted(settings.n_tasks, 'task')}"


def live_part(run: SynthesisRun) -> None:
    """All that changes while the run is in progress; the rest of the page is drawn again when it ends."""
    status = state.service().synthesis.status(run)
    running = status["progress"]["in_progress"]
    if running != st.session_state.get("synthesis-running"):
        st.session_state["synthesis-running"] = running
        st.rerun()
    run_figures(status)
    run_buttons(run, status)
    stage_table(run, status)


page_header("synthesis")
synthesis_page()
