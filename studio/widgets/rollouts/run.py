"""One run: its state and progress, a tile for every attempt, and the buttons that cancel and resume it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.errors import StudioError
from core.rollouts import OUTCOMES, Attempt, Run, prompt_uid
from core.rollouts.runner import RETRIED
from studio import kit, state
from studio.kit.figures import Tone
from studio.kit.format import escape

MOST_TASKS = 60
TONES: Mapping[str | None, Tone] = {
    "solved": "good",
    "failed": "bad",
    "timed_out": "bad",
    "crashed": "warn",
    "refused": "warn",
    "lost": "muted",
}


def run_figures(status: Mapping[str, Any]) -> None:
    """The row of figures and the progress bar."""
    done = status["progress"]
    solved = done["outcomes"].get("solved", 0)
    unscored = sum(done["outcomes"].get(name, 0) for name in ("crashed", "refused"))
    kit.figures(
        [
            kit.Figure("State", done["state"], f"{status['workers']} in parallel", _state_tone(done["state"])),
            kit.Figure("Ended", f"{kit.count(done['n_done'])} of {kit.count(done['n_slots'])}", "attempts"),
            kit.Figure("Running", kit.count(done["n_running"]), f"{kit.count(done['n_waiting'])} waiting"),
            kit.Figure(
                "Solved", kit.count(solved), kit.percent(solved, done["n_scored"]), help="Of the scored attempts"
            ),
            kit.Figure("Mean score", kit.number(done["mean_score"]), f"of {kit.count(done['n_scored'])} scored"),
            kit.Figure(
                "Unscored",
                kit.count(unscored),
                "crashed or refused",
                "warn" if unscored else "",
                "These trajectories stay unscored, which is not 0",
            ),
            kit.Figure("Lost", kit.count(done["outcomes"].get("lost", 0)), f"{kit.count(done['n_retries'])} retries"),
            kit.Figure("Time per attempt", kit.seconds(done["mean_s"]), "agent and check"),
            kit.Figure("Time left", kit.seconds(done["eta_s"]), "estimated"),
        ],
        dense=True,
    )
    st.progress(done["n_done"] / done["n_slots"])
    if status["error"]:
        kit.show_error(StudioError(status["error"], hint="The run can be resumed."))


def run_buttons(run: Run, status: Mapping[str, Any]) -> None:
    """Cancel while it runs; resume and retry otherwise."""
    host, uid, done = state.service().rollouts, run.settings.run, status["progress"]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if done["state"] == "running":
            if st.button("Cancel", icon=":material/stop:", key="rollout-cancel", help="Running attempts are lost"):
                with st.spinner("Stopping the attempts…"):
                    host.cancel(uid)
                st.rerun()
            return
        if done["state"] == "stopped":
            label = f"Resume: {kit.counted(done['n_waiting'], 'attempt')} left"
            if st.button(label, icon=":material/play_arrow:", key="rollout-resume", type="primary"):
                _resume(uid, ["lost"])
        again = [name for name in RETRIED if name != "lost" and done["outcomes"].get(name)]
        for name in again:
            label = f"Retry {kit.count(done['outcomes'][name])} {name}"
            if st.button(label, icon=":material/replay:", key=f"rollout-retry-{name}"):
                _resume(uid, ["lost", name])


def _resume(uid: str, retry: Sequence[Any]) -> None:
    try:
        state.service().rollouts.resume(uid, retry=retry)
    except StudioError as error:
        kit.show_error(error)
        return
    st.rerun()


def tiles(run: Run, attempts: Sequence[Attempt]) -> None:
    """A row for each task, a tile for each attempt by its newest try."""
    newest: dict[str, dict[int, Attempt]] = defaultdict(dict)
    for one in attempts:
        newest[one.task_id][one.number] = one
    shown = [task for task in run.settings.task_ids if task in newest][:MOST_TASKS]
    rows = "".join(_row(run, task, newest[task]) for task in shown)
    st.html(f'<div class="cs-tiles cs-rollouts">{rows}</div>')
    if len(newest) > MOST_TASKS:
        st.caption(f"The first {MOST_TASKS} of {kit.count(len(newest))} tasks; the table has all.")


def _row(run: Run, task: str, made: Mapping[int, Attempt]) -> str:
    cells = "".join(_tile(run, task, number, made.get(number)) for number in range(run.settings.attempts))
    n_solved = sum(one.outcome == "solved" for one in made.values())
    link = escape(state.link("inspect", group=prompt_uid(task, run.settings.harness)))
    return (
        f'<a class="k" href="{link}" target="_self" title="{escape(task)}">{escape(task)}</a>'
        f'<div class="row">{cells}</div><div class="n">{n_solved} / {run.settings.attempts}</div>'
    )


def _tile(run: Run, task: str, number: int, attempt: Attempt | None) -> str:
    if attempt is None:
        return '<a class="open" title="waiting"></a>'
    outcome = attempt.outcome if attempt.state == "done" else None
    score = "" if attempt.score is None else f", score {kit.number(attempt.score)}"
    text = f"attempt {number}: {OUTCOMES[outcome] if outcome else attempt.state}{score}"
    tone = {"good": "good", "bad": "bad", "warn": "warn"}.get(TONES.get(outcome, ""), "open")
    strength = 100 if attempt.score is None else round(35 + 65 * abs(2 * min(1.0, max(0.0, attempt.score)) - 1))
    link = escape(state.link("rollouts", run=run.settings.run, attempt=attempt_key(attempt)))
    return (
        f'<a class="{tone}{" running" if outcome is None else ""}" style="--strength:{strength}%" href="{link}" '
        f'target="_self" title="{escape(text)}" aria-label="{escape(text)}"></a>'
    )


def attempt_key(attempt: Attempt) -> str:
    """The attempt in the URL."""
    return f"{attempt.number}.{attempt.retry}.{attempt.task_id}"


def _state_tone(name: str) -> Tone:
    return {"finished": "good", "stopped": "warn"}.get(name, "")  # type: ignore[return-value]
