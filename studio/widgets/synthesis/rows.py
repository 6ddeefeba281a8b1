"""The rows of a stage: filters and a table; a click shows one below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from core.synthesis import SynthesisRun
from core.synthesis.listing import listed
from core.synthesis.routes import route_of
from core.synthesis.stages.checker import CHECKER
from core.synthesis.stages.shared import DEDUP
from studio import kit, state
from studio.kit.data_tables import HEADER_HEIGHT, ROW_HEIGHT, cut_text
from studio.kit.url_choices import segmented_choice
from studio.widgets.synthesis.row import row_detail

MOST_SHOWN = 12
NUMBERS = ("Mutation score", "Flakiness", "Solution", "Answers", "Similarity", "US dollars")
KINDS = {
    "passes": "passed",
    "stopped": "stopped",
    "waiting": "waiting",
    "edited": "edited",
}
SPECIAL = {
    DEDUP: {"similarity": "Similarity", "nearest": "Nearest"},
    CHECKER: {
        "mutation_score": "Mutation score",
        "flakiness": "Flakiness",
        "solution_score": "Solution",
        "n_answers": "Answers",
    },
}


def rows_view(run: SynthesisRun, *, in_progress: bool) -> None:
    """The stage in the URL, its rows, and the row in the URL."""
    route = route_of(run.settings.route)
    stage = segmented_choice("Stage", {one.name: one.name for one in route.stages}, "stage")
    rows = listed(route, stage, state.service().synthesis.state(run))
    if not rows:
        st.caption("This stage has no rows yet.")
        return
    shown = _filtered(stage, rows)
    _table(stage, shown)
    key = state.query("row")
    chosen = next((one for one in rows if one["row"] == key), None)
    if chosen is not None:
        row_detail(run, stage, chosen, in_progress=in_progress)


def _filtered(stage: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        kinds = st.pills(
            "Rows", list(KINDS), selection_mode="multi", key=f"synthesis-kinds-{stage}",
            label_visibility="collapsed", format_func=KINDS.__getitem__,
        )  # fmt: skip
        least, most = 0.0, 1.0
        if stage == CHECKER:
            least = st.number_input("Min mutation score", 0.0, 1.0, 0.0, 0.05, key="synthesis-least", width=170)
            most = st.number_input("Max flakiness", 0.0, 1.0, 1.0, 0.05, key="synthesis-most", width=170)
    return [one for one in rows if (not kinds or any(_is(one, kind) for kind in kinds)) and _measured(one, least, most)]


def _is(row: Mapping[str, Any], kind: str) -> bool:
    return {
        "passes": row["passes"],
        "stopped": not row["passes"],
        "waiting": row["waiting"],
        "edited": row["edited"],
    }[kind]


def _measured(row: Mapping[str, Any], least: float, most: float) -> bool:
    mutation, flaky = row["mutation_score"], row["flakiness"]
    return (least <= 0 or (mutation is not None and mutation >= least)) and (
        most >= 1 or (flaky is not None and flaky <= most)
    )


def _table(stage: str, rows: Sequence[Mapping[str, Any]]) -> None:
    special = SPECIAL.get(stage, {})
    text_width, shown = (130, 20) if special else (205, 32)
    frame = pd.DataFrame(
        [
            {
                "Row": one["row"],
                "State": "waiting" if one["waiting"] else one["state"],
                "Passed": one["passes"],
                "Decision": one["decision"] or ("edited" if one["edited"] else ""),
                **{title: one[name] for name, title in special.items()},
                "Reason": cut_text(one["reason"] or "", shown),
                "What": cut_text(one["text"] or "", shown),
                "Calls": one["n_calls"],
                "US dollars": one["cost_usd"],
                "Seconds": one["wall_s"],
            }
            for one in rows
        ]
    )
    # Without a type, a column of None alone would be drawn as text.
    numbers = [title for title in NUMBERS if title in frame]
    frame = frame.astype(dict.fromkeys(numbers, "float64"))
    c = st.column_config
    # What fits a page that is 1280 pixels wide; the table's own menu shows the others.
    wide = ("Calls", "US dollars", "Seconds") if special else ()
    event = st.dataframe(
        frame,
        column_order=[name for name in frame if name not in wide],
        key=f"synthesis-table-{stage}",
        height=HEADER_HEIGHT + ROW_HEIGHT * min(max(len(rows), 1), MOST_SHOWN),
        placeholder="",
        row_height=ROW_HEIGHT,
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "Row": c.TextColumn(width=80),
            "State": c.TextColumn(width=70),
            "Passed": c.CheckboxColumn(width=66, help="Whether later stages process it"),
            "Decision": c.TextColumn(width=72, help="By a person"),
            "Reason": c.TextColumn(width=text_width, help="Why its stage rejected it"),
            "What": c.TextColumn(width=text_width),
            "Mutation score": c.NumberColumn(format="%.2f", width=105, help="Share of wrong results that score less"),
            "Flakiness": c.NumberColumn(format="%.2f", width=80, help="Share of runs that gave another score"),
            "Solution": c.NumberColumn(format="%.2f", width=75, help="Score of the reference solution"),
            "Answers": c.NumberColumn(width=70, help="Checkers until one held"),
            "Similarity": c.NumberColumn(format="%.3f", width=80, help="Cosine with the nearest earlier task"),
            "Nearest": c.TextColumn(width=80),
            "Calls": c.NumberColumn(width=50),
            "US dollars": c.NumberColumn(format="%.4f", width=80, help="Empty: the price is not known"),
            "Seconds": c.NumberColumn(format="%.1f", width=72),
        },
    )
    st.caption(f"{kit.counted(len(rows), 'row')}. Select a row to see it and its actions.")
    picked = event["selection"]["rows"]
    key = rows[picked[0]]["row"] if picked and picked[0] < len(rows) else None
    if key is not None and st.session_state.get("synthesis-picked") != (stage, key):
        st.session_state["synthesis-picked"] = (stage, key)
        state.set_query(row=key)
        st.rerun()
