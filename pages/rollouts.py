"""The Rollouts page: start a run, watch it, and look at each attempt."""

from __future__ import annotations

import streamlit as st

from core.rollouts import Attempt, Run
from studio import kit, state
from studio.frame.header import page_header
from studio.kit.url_choices import run_choice
from studio.widgets.rollouts.attempts import attempt_detail, attempts_table
from studio.widgets.rollouts.run import run_buttons, run_figures, tiles
from studio.widgets.rollouts.start import start_form

LIVE_S, IDLE_S = 1.5, 10.0


def rollouts_page() -> None:
    """The newest run, or the one in the URL; the form alone without any."""
    host = state.service().rollouts
    runs = {run.settings.run: run for run in host.runs.all()}
    if not runs:
        kit.empty_state(
            "No rollouts yet",
            "A run lets an agent attempt the tasks of a pack, each attempt in a sandbox of its own, and scores what it "
            "left. Start one here, or with `claw-studio rollout PACK --agent demo --attempts 4`.",
            icon="rocket_launch",
        )
        start_form()
        return
    uid = run_choice({uid: label_of(run) for uid, run in runs.items()})
    with st.expander("New run", icon=":material/add:"):
        start_form()
    run = runs[uid]
    running = host.status(run)["progress"]["in_progress"]
    st.session_state["rollout-running"] = running
    kit.live(LIVE_S if running else IDLE_S)(live_part)(run)
    kit.section("Attempts", "select a row to see its checks, output and changed files")
    attempts_table(run.attempts())
    if (attempt := chosen(run)) is not None:
        attempt_detail(run, attempt)


def label_of(run: Run) -> str:
    """A run as one line of the list."""
    settings = run.settings
    return f"{settings.run}  ·  {settings.pack}  ·  {settings.harness}  ·  {settings.model}"


def live_part(run: Run) -> None:
    """All that changes while attempts run; the rest of the page is drawn again when the run ends."""
    status = state.service().rollouts.status(run)
    running = status["progress"]["in_progress"]
    if running != st.session_state.get("rollout-running"):
        st.session_state["rollout-running"] = running
        st.rerun()
    run_figures(status)
    run_buttons(run, status)
    kit.section("Tasks", "one tile per attempt: green solved, red failed, orange unscored, dashed not finished")
    tiles(run, run.attempts())


def chosen(run: Run) -> Attempt | None:
    """The attempt in the URL."""
    number, _, rest = (state.query("attempt") or "").partition(".")
    retry, _, task_id = rest.partition(".")
    wanted = (task_id, number, retry)
    return next((one for one in run.attempts() if wanted == (one.task_id, str(one.number), str(one.retry))), None)


page_header("rollouts")
rollouts_page()
