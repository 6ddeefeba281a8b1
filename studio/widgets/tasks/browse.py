"""The list of a pack's tasks: search, facets, table, and the split of the selected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import streamlit as st

from core.packs.edit import with_splits
from core.packs.listing import Listing
from core.packs.model import PackTask
from core.report.source import TaskScore, runs_of, scores_by_task
from studio import kit, state
from studio.kit import column_choice, data_tables, selection
from studio.widgets.tasks.packs import keep, listing_of

LABELS = {
    "split": "Split", "category": "Category", "tag": "Tag", "route": "ClawGym route", "checker": "Check",
    "rubric": "Rubric", "needs": "Needs",
}  # fmt: skip
PICKED = "task"
SHOWN_VALUES = 200
PILLS = 2
QUERY_CHARS = 40
"""Characters that fit the column of queries."""
ORDERS = ("task_id", "category", "split", "files", "bytes", "checker", "attempts", "mean")
SCHEMA = pa.schema(
    {
        "task_id": pa.string(), "query": pa.string(), "category": pa.string(), "split": pa.string(),
        "tags": pa.list_(pa.string()), "checker": pa.string(), "files": pa.int64(), "bytes": pa.int64(),
        "attempts": pa.int64(), "mean": pa.float64(),
    }
)  # fmt: skip


def task_table() -> data_tables.TableSpec:
    """Tasks, one per row."""
    c = st.column_config
    return data_tables.TableSpec(
        "task_id",
        ("task_id", "query", "category", "split", "attempts", "mean"),
        {
            "task_id": c.TextColumn("Task", width=90),
            "query": c.TextColumn("Query", width=264),
            "category": c.TextColumn("Category", width=180),
            "split": c.TextColumn("Split", width=54),
            "tags": c.ListColumn("Tags", width=130),
            "checker": c.TextColumn("Check", width=84),
            "files": c.NumberColumn("Files", width=52, help="Input files"),
            "bytes": c.NumberColumn("Bytes", width=72, format="localized", help="Size of the input files"),
            "attempts": c.NumberColumn("Attempts", width=72, help="Attempts that have ended, in all runs of this pack"),
            "mean": c.NumberColumn("Mean", width=58, format="%.2f", help="Mean score; empty: unscored, which is not 0"),
        },
    )  # fmt: skip


def browse(pack_listing: Listing) -> None:
    """Facets on the left, the table on the right; a click on a cell opens the task, check boxes select."""
    left, right = st.columns([2.1, 9], gap="medium")
    with left:
        text = search_box()
        chosen = facets(pack_listing, text)
    with right, kit.error_boundary():
        table(pack_listing, text, chosen)


def search_box() -> str:
    """The words to search, kept in the URL as ``q``."""
    st.session_state["tasks-search"] = state.query("q") or ""
    text: str = st.text_input(
        "Search",
        key="tasks-search",
        placeholder="Search id, query, tags, file names",
        label_visibility="collapsed",
        icon=":material/search:",
        on_change=_searched,
    )
    return text


def _searched() -> None:
    state.set_query(q=st.session_state["tasks-search"] or None, page=None)


def facets(pack_listing: Listing, text: str) -> dict[str, list[str]]:
    """Values to choose with their counts, kept in the URL; returns facet -> chosen values."""
    chosen = {name: values for name in LABELS if (values := st.query_params.get_all(name))}
    for name, counted in pack_listing.counts(text, chosen).items():
        picked = chosen.get(name, [])
        values = list(dict.fromkeys([*picked, *list(counted)[:SHOWN_VALUES]]))
        if len(values) < 2 and not picked:
            continue
        key = f"tasks-facet-{name}"
        st.session_state[key] = picked
        # Pills of one row are cut at the column's width, so longer facets are lists.
        if len(values) <= PILLS:
            st.pills(
                LABELS[name],
                values,
                selection_mode="multi",
                format_func=lambda value, counted=counted: kit.escape_markdown(f"{value} {counted.get(value, 0):,}"),
                key=key,
                on_change=_chose,
                args=(name, key),
            )
        else:
            st.multiselect(
                LABELS[name],
                values,
                format_func=lambda value, counted=counted: f"{value} {counted.get(value, 0):,}",
                placeholder="any",
                key=key,
                on_change=_chose,
                args=(name, key),
            )
    return chosen


def _chose(name: str, key: str) -> None:
    state.set_query(**{name: st.session_state[key] or None, "page": None})


def table(pack_listing: Listing, text: str, chosen: Mapping[str, Sequence[str]]) -> None:
    """The tasks that match, page by page."""
    pack = pack_listing.pack
    tasks = pack_listing.find(text, chosen)
    if not tasks:
        kit.empty_state("No task matches", "Remove a word or a facet to see more.", icon="filter_alt_off")
        return
    scores = scores_by_task(runs_of(state.service().rollouts.runs, pack.name), pack.name)
    sorting = data_tables.Sorting.from_query(ORDERS, "task_id asc", "order")
    rows = [row_of(task, scores.get(task.task_id)) for task in tasks]
    name, descending = sorting.first
    known = [row for row in rows if row[name] is not None]
    known.sort(key=lambda row: row[name], reverse=descending)
    rows = [*known, *(row for row in rows if row[name] is None)]
    picked = selection.selected_uids(PICKED) & set(pack.by_id)
    spec = column_choice.with_columns(task_table(), "tasks")
    bar = st.container(horizontal=True, vertical_alignment="center", gap="small", key="tasks-bar")
    offset = (min(data_tables.page_from_query(), -(-len(rows) // data_tables.PAGE_SIZE)) - 1) * data_tables.PAGE_SIZE
    now = data_tables.selectable_table(
        pa.Table.from_pylist(rows[offset : offset + data_tables.PAGE_SIZE], schema=SCHEMA),
        spec,
        key=f"tasks-{pack.version}-{text}-{sorted(chosen.items())}-{sorting.order}-{offset}-{selection.epoch()}"
        f"-{'.'.join(spec.columns)}",
        picked=picked,
        height=610,
        sorting=sorting,
        opened=lambda uid: state.set_query(task=uid),
    )
    data_tables.pagination(len(rows), key=f"tasks-{pack.version}", noun="tasks")
    if now != picked:
        selection.set_selected(PICKED, now)
    with bar:
        selected_bar(pack_listing, now, [task.task_id for task in tasks])
        st.space("stretch")
        column_choice.table_settings(sorting, spec, "tasks")


def row_of(task: PackTask, score: TaskScore | None) -> dict[str, Any]:
    """A row of the table."""
    query = " ".join(task.query.split())
    return {
        "task_id": task.task_id,
        "query": data_tables.cut_text(query, QUERY_CHARS),
        "category": task.category,
        "split": task.split,
        "tags": list(task.tags),
        "checker": task.checker,
        "files": len(task.input_files),
        "bytes": task.n_input_bytes,
        "attempts": None if score is None else score.n_ended,
        "mean": None if score is None else score.mean,
    }


def selected_bar(pack_listing: Listing, picked: set[str], matching: Sequence[str]) -> None:
    """What can be done with the selected tasks, or with all that match."""
    chosen = sorted(picked) or list(matching)
    scope = f"{kit.count(len(picked))} selected" if picked else f"all {kit.count(len(matching))} matching"
    st.caption(f"Split of {scope}:", width="content")
    for split, label in (("train", "Train"), ("val", "Validation"), (None, "None")):
        if st.button(label, key=f"tasks-split-{split}", type="tertiary", help="Creates a new version of the pack"):
            with kit.error_boundary():
                selection.clear(PICKED)
                keep(with_splits(listing_of(pack_listing.pack).pack, chosen, split))
    if picked and st.button("Deselect", key="tasks-deselect", type="tertiary", icon=":material/close:"):
        selection.clear(PICKED)
        st.rerun()
