"""One run of the synthesis: figures, the table of its stages, and the buttons that cancel and resume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from core.errors import StudioError
from core.synthesis import SynthesisRun
from core.synthesis.routes import route_of
from core.synthesis_host import state_word
from studio import kit, state
from studio.kit.figures import Tone
from studio.kit.html_tables import html_table
from studio.widgets.synthesis.start import ALL_STAGES

TONES: Mapping[str, Tone] = {"finished": "good", "stopped": "warn", "stopping": "warn"}


def run_figures(status: Mapping[str, Any]) -> None:
    """The row of figures, and why the run stopped."""
    done = status["progress"]
    word = state_word(status)
    failed = sum(one["n_failed"] for one in done["stages"])
    waiting = sum(one["n_waiting"] for one in done["stages"])
    unknown = done["n_calls"] > 0 and done["n_unpriced"] == done["n_calls"]
    unpriced = f"{kit.count(done['n_unpriced'])} calls without a price" if done["n_unpriced"] else ""
    kit.figures(
        [
            kit.Figure("State", word, f"{kit.counted(status['workers'], 'row')} in parallel", TONES.get(word, "")),
            kit.Figure("Ready", kit.count(done["n_ready"]), f"of {kit.counted(status['n_tasks'], 'task')} begun",
                       help="Tasks that passed every stage"),
            kit.Figure("Rows failed", kit.count(failed), "each with its reason"),
            kit.Figure("Rows waiting", kit.count(waiting), "to be processed"),
            kit.Figure("Calls", kit.count(done["n_calls"]), _of(status["max_calls"], kit.count)),
            kit.Figure("Tokens", kit.compact(done["n_tokens"]), _of(status["max_total_tokens"], kit.compact)),
            kit.Figure("US dollars", kit.DASH if unknown else f"{done['cost_usd']:.2f}",
                       unpriced or _of(status["max_usd"], kit.number)),
            kit.Figure("Time left", kit.seconds(done["eta_s"] if done["in_progress"] else None), "estimated"),
        ],
        dense=True,
    )  # fmt: skip
    if status["error"]:
        kit.show_error(StudioError(status["error"], hint="The run can be resumed."))
    elif word == "stopped":
        st.caption(
            kit.escape_markdown(f"It stopped: {done['state']}. Resume continues; finished calls are not repeated.")
        )


def _of(limit: float | None, text: Any) -> str:
    return "no limit" if limit is None else f"of {text(limit)}"


def stage_table(run: SynthesisRun, status: Mapping[str, Any]) -> None:
    """A line for each stage; its name leads to its rows."""
    lines = []
    for one in status["progress"]["stages"]:
        link = kit.escape(state.link("synthesis", run=run.settings.run, stage=one["stage"]))
        people = [f"{one[f'n_{what}']} {what}" for what in ("accepted", "rejected") if one[f"n_{what}"]]
        lines.append(
            (
                f'<a href="{link}" target="_self">{kit.escape(one["stage"])}</a>',
                kit.escape(one["title"]),
                kit.count(one["n_done"]),
                kit.count(one["n_failed"]),
                kit.count(one["n_waiting"]),
                kit.escape(", ".join(people)),
                kit.seconds(one["mean_s"]),
            )
        )
    html_table(
        ("Stage", "What it does", "Made", "Failed", "Waiting", "Manual decisions", "Time per row"),
        lines,
        numeric=(2, 3, 4, 6),
    )


def run_buttons(run: SynthesisRun, status: Mapping[str, Any]) -> None:
    """Cancel while it runs; resume otherwise, with another budget or up to a stage."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if status["progress"]["in_progress"]:
            if st.button(
                "Cancel",
                icon=":material/stop:",
                key="synthesis-cancel",
                disabled=status["cancelling"],
                help="It stops after the calls in flight; their answers are stored",
            ):
                state.service().synthesis.cancel(run.settings.run)
                st.rerun()
            return
        if st.button("Resume", icon=":material/play_arrow:", key="synthesis-resume", type="primary"):
            _resume(run, None, {})
        with st.popover("Resume with", icon=":material/tune:"), st.form("resume-synthesis", border=False):
            names = [one.name for one in route_of(run.settings.route).stages[:-1]]
            until = st.selectbox("Stop after", [ALL_STAGES, *names])
            st.caption("Budgets count from the beginning of the run.")
            budget = {
                "max_calls": st.number_input("Max calls", 1, value=status["max_calls"]),
                "max_total_tokens": st.number_input("Max tokens", 1, value=status["max_total_tokens"]),
                "max_usd": st.number_input("Max US dollars", 0.01, value=status["max_usd"]),
            }
            if st.form_submit_button("Resume", type="primary"):
                _resume(run, None if until == ALL_STAGES else until, budget)


def _resume(run: SynthesisRun, until: str | None, budget: Mapping[str, Any]) -> None:
    try:
        state.service().synthesis.resume(run.settings.run, until=until, budget=budget)
    except StudioError as error:
        kit.show_error(error)
        return
    st.rerun()
