"""The pack of a run: tasks with what was measured of them, filters, and the button that stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from core.packs import PackTask
from core.synthesis import Choice, SynthesisRun, filtered
from core.synthesis.behaviour import SameAs
from core.synthesis.difficulty import BAND, Difficulty
from core.synthesis.pack import KEY, tasks_of
from studio import kit, state
from studio.kit.data_tables import HEADER_HEIGHT, ROW_HEIGHT

MOST_SHOWN = 14
NUMBERS = ("Difficulty", "Mutation score", "Flakiness", "Solution", "Solve rate")


def pack_view(run: SynthesisRun) -> None:
    """Filters, the tasks, and what was stored."""
    service = state.service()
    host = service.synthesis
    tasks = tasks_of(run, host.state(run))
    if not tasks:
        kit.empty_state(
            "No task is ready",
            "A task is ready when it passed every stage. The rows of each stage show the reasons.",
            icon="inventory_2",
        )
        return
    choice = _choice()
    measured = host.difficulty(run)
    same = host.same_behaviour(measured) if choice.distinct_behaviour else {}
    with kit.error_boundary():
        kept = {one.task_id for one in filtered(tasks, choice, measured, same)}
        n_rated = sum(one.solve_rate is not None for one in measured.values())
        kit.figures(
            [
                kit.Figure("In the pack", kit.count(len(kept)), f"of {kit.counted(len(tasks), 'ready task')}"),
                kit.Figure("With a solve rate", kit.count(n_rated), "from rollouts"),
                kit.Figure(
                    "Same actions",
                    kit.count(len(same)) if choice.distinct_behaviour else kit.DASH,
                    "as an earlier task" if choice.distinct_behaviour else "not compared",
                ),
            ],
            dense=True,
        )
        _table(tasks, kept, measured, same)
        _store(run, choice, bool(kept))
    _stored(run)


def _choice() -> Choice:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        mutation = st.number_input("Min mutation score", 0.0, 1.0, 0.0, 0.05, key="pack-mutation", width=170)
        flaky = st.number_input("Max flakiness", 0.0, 1.0, 1.0, 0.05, key="pack-flaky", width=150)
        hard = st.number_input("Min difficulty", 0.0, 5.0, 0.0, 1.0, key="pack-hard", width=150,
                               help="As rated by the model that wrote the task")  # fmt: skip
        band = st.toggle(
            f"Solve rate {BAND[0]:g} to {BAND[1]:g}",
            key="pack-band",
            help="Share of the scored attempts of all rollouts. Tasks without one are left out",
        )
        distinct = st.toggle(
            "Distinct behaviour",
            key="pack-distinct",
            help="Without tasks that agents solve by the same actions as an earlier one",
        )
    low, high = BAND if band else (0.0, 1.0)
    return Choice(float(mutation), float(flaky), float(hard), low, high, distinct)


def _table(
    tasks: Sequence[PackTask], kept: set[str], measured: Mapping[str, Difficulty], same: Mapping[str, SameAs]
) -> None:
    lines = []
    for task in tasks:
        about: Mapping[str, Any] = task.extra.get(KEY) or {}
        rolled = measured.get(task.task_id, Difficulty())
        lines.append(
            {
                "In the pack": task.task_id in kept,
                "Task": task.task_id,
                "Category": task.category or "",
                "Difficulty": about.get("difficulty"),
                "Mutation score": about.get("mutation_score"),
                "Flakiness": about.get("flakiness"),
                "Solution": about.get("solution_score"),
                "Solve rate": rolled.solve_rate,
                "Scored": rolled.n_scored,
                "Same actions as": same[task.task_id].task_id if task.task_id in same else "",
                "Calls": about.get("n_calls"),
                "Query": task.query,
            }
        )
    c = st.column_config
    st.dataframe(
        # Without a type, a column of None alone would be drawn as text.
        pd.DataFrame(lines).astype(dict.fromkeys(NUMBERS, "float64")),
        key="synthesis-pack",
        height=HEADER_HEIGHT + ROW_HEIGHT * min(len(lines), MOST_SHOWN),
        placeholder="",
        row_height=ROW_HEIGHT,
        hide_index=True,
        column_config={
            "In the pack": c.CheckboxColumn(width=85),
            "Task": c.TextColumn(width=160),
            "Difficulty": c.NumberColumn(width=80, help="As rated by the model that wrote the task, 1 to 5"),
            "Mutation score": c.NumberColumn(format="%.2f", width=105),
            "Flakiness": c.NumberColumn(format="%.2f", width=80),
            "Solution": c.NumberColumn(format="%.2f", width=75),
            "Solve rate": c.NumberColumn(format="%.2f", width=80, help="Empty: no attempt has a score"),
            "Scored": c.NumberColumn(width=65, help="Attempts with a score, over all runs and models"),
            "Query": c.TextColumn(width=235),
        },
    )


def _store(run: SynthesisRun, choice: Choice, some: bool) -> None:
    if st.button("Store the pack", icon=":material/inventory_2:", type="primary", key="synthesis-store",
                 disabled=not some, help="As a version among the task packs"):  # fmt: skip
        entry = state.service().synthesis.keep_pack(run, choice)
        st.toast(f"{kit.escape_markdown(entry.name)} {entry.version}: {kit.counted(entry.n_tasks, 'task')}")


def _stored(run: SynthesisRun) -> None:
    entries = [one for one in state.service().rollouts.packs.entries() if one.name == run.settings.run]
    if not entries:
        return
    kit.section("Stored versions", "newest first")
    for one in entries:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"`{one.version}`  ·  {kit.counted(one.n_tasks, 'task')}")
            if st.button("Open in Tasks", icon=":material/assignment:", key=f"open-{one.version}", type="tertiary"):
                state.goto("tasks", pack=one.version)
