"""The SQL page: one SELECT over the pool, its schema, earlier queries, and the result as a table, a chart or a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from core.errors import StudioError
from core.pool.sql.console import MAX_ROWS, SqlResult
from studio import kit, state
from studio.components import schema_list, sql_editor
from studio.frame.header import page_header
from studio.kit.url_choices import segmented_choice
from studio.widgets.sql.earlier import history, remember
from studio.widgets.sql.functions import FUNCTIONS
from studio.widgets.sql.result import as_chart, as_table, as_view

EXAMPLES = {
    "Reward by agent": (
        "SELECT agent, count(*) AS trajectories, avg(reward) AS mean_reward\n"
        "FROM trajectories WHERE reward IS NOT NULL GROUP BY agent ORDER BY mean_reward DESC"
    ),
    "Longest trajectories": (
        "SELECT trajectory_uid, n_steps, n_unique_tokens, reward\n"
        "FROM trajectories ORDER BY n_unique_tokens DESC LIMIT 50"
    ),
    "Steps with a finding": (
        "SELECT step_uid, trajectory_uid, findings, reward, preview\n"
        "FROM steps WHERE len(findings) > 0 ORDER BY created_at DESC LIMIT 100"
    ),
    "Tools by success": (
        "SELECT tool, count(*) AS calls, avg(trajectory_reward) AS mean_reward\n"
        "FROM (SELECT unnest(tool_names) AS tool, trajectory_reward FROM steps)\n"
        "GROUP BY tool ORDER BY calls DESC"
    ),
    "Steps per hour": (
        "SELECT date_trunc('hour', created_at) AS hour, count(*) AS steps FROM steps GROUP BY hour ORDER BY hour"
    ),
}
FIRST_TABLES = ("steps", "trajectories", "annotations", "actions", "messages")
LIMITS = (100, 1000, MAX_ROWS)
EDITOR = "sql-editor"
TABS = {"table": "Table", "chart": "Chart", "view": "Make a view"}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A query and its result, kept in the session."""

    text: str
    limit: int
    result: SqlResult


def sql_page() -> None:
    """Schema and earlier queries on the left; query and result on the right. The query is in the URL as ``q``."""
    service = state.service()
    tables = sorted(service.pool.sql.schema(), key=place)
    left, right = st.columns([2.9, 8.1], gap="medium")
    text, limit = state.query("q"), limit_from_query()
    with right:
        sql_editor(
            text=text or next(iter(EXAMPLES.values())),
            limit=limit,
            limits=LIMITS,
            note="Read-only: no writes, files or network. Time limit 10 s.",
            tables=tables,
            functions=FUNCTIONS,
            key=EDITOR,
            ran=run_pressed,
        )
        with kit.error_boundary():
            show(text, limit)
    # After the query has run, so that it is in the list.
    with left:
        schema_list(tables=tables, opened=FIRST_TABLES[:1], history=history(service.clock()), height=680)


def place(table: dict[str, Any]) -> tuple[int, str]:
    """The most used tables first."""
    name = table["table"]
    return (FIRST_TABLES.index(name) if name in FIRST_TABLES else len(FIRST_TABLES), name)


def limit_from_query() -> int:
    """The row limit in the URL."""
    requested = state.query("limit", "") or ""
    return int(requested) if requested in map(str, LIMITS) else 1000


def run_pressed() -> None:
    """Put the editor's query into the URL; it runs when the page is drawn, also if it is the same as before."""
    pressed = st.session_state[EDITOR]["run"]
    state.set_query(q=pressed["text"].strip() or None, limit=None if pressed["limit"] == 1000 else pressed["limit"])
    st.session_state.pop("sql-asked", None)


def show(text: str | None, limit: int) -> None:
    """The result. The query runs again only when Run is pressed, or when it or the limit changes."""
    if not text:
        examples()
        return
    kept: QueryResult | None = st.session_state.get("sql-asked")
    if kept is None or (kept.text, kept.limit) != (text, limit):
        with st.spinner("Running…", show_time=True):
            kept = QueryResult(text, limit, answer(text, limit))
        st.session_state["sql-asked"] = kept
    result = kept.result
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        tab = segmented_choice("Answer", TABS, "tab")
        more = " (there are more)" if result.truncated else ""
        st.caption(f"{kit.counted(len(result.table), 'row')}{more} in {kit.seconds(result.elapsed_s)}")
    {"table": as_table, "chart": as_chart, "view": as_view}[tab](result.table)


def answer(text: str, limit: int) -> SqlResult:
    """Run a query, and add it to the earlier ones."""
    service = state.service()
    try:
        result = service.pool.sql.run(text, limit=limit)
    except StudioError:
        remember(text, service.clock())
        raise
    remember(text, service.clock(), n_rows=len(result.table), elapsed_s=result.elapsed_s)
    return result


def examples() -> None:
    """Example queries."""
    kit.section("Examples", "click to run")
    for title, text in EXAMPLES.items():
        if st.button(title, key=f"example-{title}", type="tertiary", icon=":material/arrow_forward:"):
            state.set_query(q=text)
            st.rerun()


page_header("sql")
sql_page()
