"""The table of a run's attempts, and one attempt: outcome, checks, output, changed files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from core.rollouts import OUTCOMES, Attempt, Run
from core.rollouts.diffs import diffs
from studio import kit, state
from studio.kit.data_tables import HEADER_HEIGHT, ROW_HEIGHT
from studio.kit.html_tables import html_table
from studio.widgets.rollouts.run import TONES, attempt_key

MOST_ROWS_SHOWN = 14
MOST_LOG_CHARS = 200_000
MOST_FILES = 40


def attempts_table(attempts: Sequence[Attempt]) -> None:
    """All attempts, retries included, newest first; a click shows one below."""
    chosen = st.pills(
        "Outcome", [name for name in OUTCOMES if any(one.outcome == name for one in attempts)],
        selection_mode="multi", key="attempt-outcomes", label_visibility="collapsed",
        format_func=lambda name: name.replace("_", " "),
    )  # fmt: skip
    shown = [one for one in reversed(attempts) if not chosen or one.outcome in chosen]
    frame = pd.DataFrame([row_of(one) for one in shown], columns=list(COLUMNS))
    c = st.column_config
    event = st.dataframe(
        frame,
        key="attempts-table",
        height=HEADER_HEIGHT + ROW_HEIGHT * min(max(len(shown), 1), MOST_ROWS_SHOWN),
        placeholder="",
        row_height=ROW_HEIGHT,
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "Score": c.NumberColumn(format="%.3g", help="Empty means unscored, which is not 0"),
            "Agent": c.NumberColumn(format="%.1f s", help="Duration of the agent"),
            "CPU": c.NumberColumn(format="%.1f s", help="Processor time of the agent; empty if it was killed"),
            "Check": c.NumberColumn(format="%.2f s", help="Duration of the verification"),
            "Reason": c.TextColumn(width=230),
        },
    )
    rows = event["selection"]["rows"]
    picked = attempt_key(shown[rows[0]]) if rows and rows[0] < len(shown) else None
    if picked is not None and st.session_state.get("attempt-picked") != picked:
        st.session_state["attempt-picked"] = picked
        state.set_query(attempt=picked)
        st.rerun()


COLUMNS = ("Task", "Attempt", "Retry", "Outcome", "Score", "Reason", "Agent", "CPU", "Check", "Isolation", "Trajectory")


def row_of(one: Attempt) -> tuple[Any, ...]:
    """One row of the table."""
    outcome = one.outcome.replace("_", " ") if one.outcome and one.state == "done" else one.state
    level = None if one.isolation is None else one.isolation["level"]
    times = (one.wall_s, one.cpu_s, one.check_s)
    return (one.task_id, one.number, one.retry, outcome, one.score, one.reason or "", *times, level, one.trajectory_uid)


def attempt_detail(run: Run, attempt: Attempt) -> None:
    """Everything that is stored of one attempt."""
    tone = TONES.get(attempt.outcome, "")
    outcome = attempt.outcome.replace("_", " ") if attempt.outcome else attempt.state
    title = f"{attempt.task_id} · attempt {attempt.number}" + (f", retry {attempt.retry}" if attempt.retry else "")
    kit.section(title, "agent, check, output and changed files")
    reason = f'<span class="q"> {kit.escape(attempt.reason)}</span>' if attempt.reason else ""
    st.html(f'<div class="cs-outcome"><span class="cs-tag {tone}">{kit.escape(outcome)}</span>{reason}</div>')
    left, right = st.columns([2, 3], gap="medium")
    with left:
        level = attempt.isolation or {}
        kit.facts(
            [
                ("Score", kit.number(attempt.score)),
                ("Agent time", kit.seconds(attempt.wall_s)),
                ("Processor time", kit.seconds(attempt.cpu_s)),
                ("Peak memory", kit.bytes_text(attempt.memory_bytes)),
                ("Check time", kit.seconds(attempt.check_s)),
                ("Isolation", f"{level['level']} ({level['layer']})" if level else None),
                ("Network", level.get("network")),
                ("Model", run.settings.model),
                ("Pack version", attempt.pack_version),
                ("Trajectory", attempt.trajectory_uid),
            ]
        )
        if st.button("Open the trajectory", icon=":material/frame_inspect:", key="attempt-inspect"):
            state.goto("inspect", trajectory=attempt.trajectory_uid)
    with right:
        _checks(attempt.details)
    changes, output = st.tabs(["Changed files", "Output of the agent"])
    with changes:
        _changes(attempt)
    with output:
        log = run.read_log(attempt)
        text = "" if log is None else log.decode(errors="replace")
        if not text:
            st.caption("No output is stored (yet).")
        else:
            if len(text) > MOST_LOG_CHARS:
                st.caption(f"The last {kit.count(MOST_LOG_CHARS)} characters of {kit.count(len(text))}.")
            st.code(text[-MOST_LOG_CHARS:], language=None, wrap_lines=True, height=360)


def _checks(details: Mapping[str, Any]) -> None:
    """The value of each check, and the rest of the verifier's details."""
    values = details.get("values")
    if isinstance(values, Mapping) and values:
        html_table(
            ["Check", "Value"],
            [(kit.escape(str(name)), kit.escape(_value(value))) for name, value in values.items()],
            numeric=[1],
        )
    rest = {name: value for name, value in details.items() if name != "values"}
    if rest:
        with st.expander("Details of the verifier", icon=":material/rule:"):
            st.json(rest, expanded=2)
    if not details:
        st.caption("The verifier gave no details.")


def _value(value: Any) -> str:
    return kit.number(float(value)) if isinstance(value, int | float) else str(value)


def _changes(attempt: Attempt) -> None:
    workspaces = state.service().rollouts.workspaces
    if attempt.workspace is None:
        st.caption("No workspace is stored: the agent did not finish.")
        return
    if not workspaces.has(attempt.workspace):
        gone = workspaces.removed().get(attempt.workspace)
        why = "it was never stored here" if gone is None else gone.text()
        st.caption(kit.escape_markdown(f"The workspace is not stored: {why}."))
        return
    made = diffs(workspaces, attempt.workspace)
    if not made:
        st.caption("The agent changed no file.")
    for one in made[:MOST_FILES]:
        sizes = f"{kit.bytes_text(one.n_bytes_before)} → {kit.bytes_text(one.n_bytes_after)}"
        with st.expander(kit.escape_markdown(f"{one.path}  ·  {one.kind}  ·  {sizes}"), expanded=len(made) <= 4):
            if one.note:
                st.caption(kit.escape_markdown(one.note))
            if one.diff:
                st.code(one.diff, language="diff", wrap_lines=True)
    if len(made) > MOST_FILES:
        st.caption(f"… and {kit.count(len(made) - MOST_FILES)} more files.")
    left_out = workspaces.get(attempt.workspace).left_out
    if left_out:
        with st.expander(f"Not stored: {kit.counted(len(left_out), 'file')}", icon=":material/block:"):
            html_table(["Path", "Why"], [(kit.escape(path), kit.escape(why)) for path, why in left_out.items()])
