"""Inspect's table of trajectories, groups, steps or runs, with columns and order chosen by the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from core.pool.groups import PromptGroups
from core.pool.query.columns import GROUP_COLUMNS, STEP_COLUMNS, TRAJECTORY_COLUMNS
from core.pool.query.runs import RUN_COLUMNS
from core.pool.runs import Runs
from core.pool.steps import Steps
from core.pool.trajectories import Trajectories
from core.types import View
from studio import kit, state
from studio.kit import column_choice, data_tables, selection
from studio.kit.filters import active_filters, apply_view, view_hash, with_filter
from studio.kit.url_choices import segmented_choice

LEVELS = {"trajectories": "Trajectories", "groups": "Prompt groups", "steps": "Steps", "runs": "Runs"}
NO_RUN = (
    "A run is a named experiment. Agents name it with the header X-Run; session keys, submitted steps and "
    "registrations with metadata.run. Rollouts and learning runs name theirs."
)


@dataclass(frozen=True, slots=True)
class Level:
    """How one level is listed: its table, its sortable columns, its default order, its name in ``selection``."""

    table: Callable[[], data_tables.TableSpec]
    orders: Sequence[str]
    newest: str
    pick: str


TABLES = {
    "trajectories": Level(data_tables.trajectory_table, list(TRAJECTORY_COLUMNS), "started_at desc", "trajectory"),
    "groups": Level(data_tables.group_table, list(GROUP_COLUMNS), "started_at desc", "group"),
    "steps": Level(data_tables.step_table, list(STEP_COLUMNS), "created_at desc", "step"),
    "runs": Level(data_tables.run_table, list(RUN_COLUMNS), "started_at desc", "runs"),
}


def listing(view: View) -> None:
    """The chosen level as a table: a click on a cell opens the row, a check box selects it."""
    pool = state.service().pool
    with st.container(horizontal=True, vertical_alignment="center", key="listing-bar"):
        level = segmented_choice("Level", LEVELS, "level")
        info = TABLES[level]
        sorting = data_tables.Sorting.from_query(info.orders, info.newest)
        order = sorting.order
        spec = column_choice.with_columns(info.table(), level)
        st.space("stretch")
        bar = st.container(horizontal=True, vertical_alignment="center", gap="xsmall", key="pick-bar", width="content")
        column_choice.table_settings(sorting, spec, level)
    active_filters(view, key="inspect")
    lists: dict[str, Steps | Trajectories | PromptGroups | Runs] = {
        "trajectories": pool.trajectories,
        "groups": pool.groups,
        "steps": pool.steps,
        "runs": pool.runs,
    }
    listed = lists[level]
    page = data_tables.page_from_query()
    rows = listed.page(view, order=order, limit=data_tables.PAGE_SIZE, offset=(page - 1) * data_tables.PAGE_SIZE)
    if len(rows) == 0 and page > 1:
        state.set_query(page=None)
        st.rerun()
    if len(rows) == 0 and level == "runs" and not (view.filters or view.where):
        kit.empty_state("No run yet", NO_RUN, icon="science")
        return
    if len(rows) == 0:
        kit.empty_state(f"No {LEVELS[level].lower()} match", "Remove a filter to see more.", icon="filter_alt_off")
        return
    picked = selection.selected_uids(info.pick)
    with st.container(key="inspect-table"):
        shown = f"{view_hash(view)}-{order}-{page}-{selection.epoch()}-{'.'.join(spec.columns)}"
        now = data_tables.selectable_table(
            rows,
            spec,
            key=f"inspect-{level}-{shown}",
            picked=picked,
            height=640,
            sorting=sorting,
            opened=lambda uid: open_row(view, level, uid),
        )
        # Counted after the rows are drawn, so that a slow count does not delay them.
        data_tables.pagination(listed.count(view), key=f"inspect-{level}-{view_hash(view)}", noun=LEVELS[level].lower())
    if now != picked:
        selection.set_selected(info.pick, now)
    if now:
        with bar:
            selection_bar(view, level, info, now)


def open_row(view: View, level: str, uid: str) -> None:
    """Open a row; called before the page is drawn. The page number stays in the URL, for the way back.

    A trajectory opens at its first step that matches the filters: at the hit of a text search.
    """
    if level == "trajectories":
        state.set_query(trajectory=uid, step=first_match(view, uid))
    elif level == "groups":
        state.set_query(group=uid)
    elif level == "runs":
        state.set_view(with_filter(view, "run", uid))
        state.set_query(level=None, page=None)
    else:
        state.set_query(trajectory=state.service().pool.steps.get(uid)["trajectory_uid"], step=uid)


def first_match(view: View, trajectory_uid: str) -> str | None:
    """The first step of the trajectory that the view holds; None without filters."""
    if not view.filters and not view.where:
        return None
    of_it = View({**view.filters, "trajectory_uid": trajectory_uid}, view.where)
    rows = state.service().pool.steps.page(of_it, order="step_index", limit=1).to_pylist()
    return str(rows[0]["step_uid"]) if rows else None


def selection_bar(view: View, level: str, info: Level, picked: set[str]) -> None:
    """Actions on the selected rows of all pages."""
    filter_name = {"groups": "prompt_uid", "runs": "run"}.get(level, f"{info.pick}_uid")
    st.html(f'<div class="cs-note"><b>{len(picked):,}</b> selected</div>', width="content")
    two = len(picked) == 2
    if level != "groups" and st.button(
        "Compare", key="pick-compare", disabled=not two, help="Compare two rows side by side"
    ):
        state.set_query(**{"runs" if level == "runs" else "compare": sorted(picked)}, page=None)
        st.rerun()
    if st.button("Keep only these", key="pick-only", help="Filter by the selection"):
        apply_view(with_filter(view, filter_name, sorted(picked)))
    if level in ("trajectories", "steps") and st.button("Label", key="pick-label", help="In Curate"):
        params = state.view_to_query(view)
        state.goto("curate", **params, level=info.pick, picked=sorted(picked)[: selection.URL_PICKS])
    if st.button("Deselect all", icon=":material/close:", type="tertiary", key="pick-clear", help="Deselect all"):
        selection.clear(info.pick)
        st.rerun()
