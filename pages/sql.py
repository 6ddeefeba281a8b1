"""The SQL page: one SELECT over the pool, its schema, and the result as a table, a chart or a view."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from core.pool.sql.console import MAX_ROWS, SqlResult
from studio import kit, state
from studio.frame.header import page_header
from studio.kit.url_choices import segmented_choice
from studio.widgets.sql.result import as_chart, as_table, as_view

EXAMPLES = {
    "Reward by agent": (
        "SELECT agent, count(*) AS trajectories, avg(reward) AS mean_reward\n"
        "FROM trajectory_state WHERE reward IS NOT NULL GROUP BY agent ORDER BY mean_reward DESC"
    ),
    "Longest trajectories": (
        "SELECT trajectory_uid, n_steps, n_unique_tokens, reward\n"
        "FROM trajectory_state ORDER BY n_unique_tokens DESC LIMIT 50"
    ),
    "Tools by success": (
        "SELECT tool, count(*) AS calls, avg(t.reward) AS mean_reward\n"
        "FROM (SELECT unnest(tool_names) AS tool, trajectory_id FROM step_state) s\n"
        "JOIN trajectory_state t USING (trajectory_id) GROUP BY tool ORDER BY calls DESC"
    ),
    "Steps per hour": (
        "SELECT date_trunc('hour', created_at) AS hour, count(*) AS steps FROM step_state GROUP BY hour ORDER BY hour"
    ),
}
FIRST_TABLES = ("trajectory_state", "step_state", "annotations", "actions", "messages")
# Keys of the session state: the text in the box, and the URL's query that was last put into it.
BOX, SHOWN = "sql-box", "sql-shown"
TABS = {"table": "Table", "chart": "Chart", "view": "Make a view"}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A query and its result, kept in the session."""

    text: str
    limit: int
    result: SqlResult


def sql_page() -> None:
    """Schema on the left; query and result on the right. The query is in the URL as ``q``."""
    left, right = st.columns([2.6, 8.4], gap="medium")
    with left:
        schema()
    with right:
        fill_box(state.query("q") or next(iter(EXAMPLES.values())))
        with st.form("sql-form", border=False):
            text = st.text_area("Query", height=150, label_visibility="collapsed", key=BOX)
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                run = st.form_submit_button("Run", type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter")
                limit = st.selectbox(
                    "Row limit",
                    [100, 1000, MAX_ROWS],
                    index=1,
                    format_func=lambda n: f"Up to {n:,} rows",
                    label_visibility="collapsed",
                    width=170,
                )
                st.caption("Read-only: no writes, files or network. Time limit 10 s.")
        if run:
            state.set_query(q=text)
            st.session_state[SHOWN] = text
        with kit.error_boundary():
            show(text if run else state.query("q"), limit)


def fill_box(query: str) -> None:
    """Put the URL's query into the box when it is another one than before: by a link, an example, or the back button.

    The box keeps one key. A key that changes with the query would mount a new box after each run, and what is typed
    into the old one meanwhile would be lost.
    """
    if BOX not in st.session_state or st.session_state.get(SHOWN) != query:
        st.session_state[BOX] = query
        st.session_state[SHOWN] = query


def show(text: str | None, limit: int) -> None:
    """The result. The query runs again only when it or the limit changes."""
    if not text:
        examples()
        return
    kept: QueryResult | None = st.session_state.get("sql-asked")
    if kept is None or (kept.text, kept.limit) != (text, limit):
        with st.spinner("Running…", show_time=True):
            kept = QueryResult(text, limit, state.service().pool.sql.run(text, limit=limit))
        st.session_state["sql-asked"] = kept
    result = kept.result
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        tab = segmented_choice("Answer", TABS, "tab")
        more = " (there are more)" if result.truncated else ""
        st.caption(f"{kit.counted(len(result.table), 'row')}{more} in {kit.seconds(result.elapsed_s)}")
        st.space("stretch")
        if st.button("Run again", icon=":material/refresh:", type="tertiary", key="sql-again"):
            del st.session_state["sql-asked"]
            st.rerun()
    {"table": as_table, "chart": as_chart, "view": as_view}[tab](result.table)


def examples() -> None:
    """Example queries."""
    kit.section("Examples", "click to run")
    for title, text in EXAMPLES.items():
        if st.button(title, key=f"example-{title}", type="tertiary", icon=":material/arrow_forward:"):
            state.set_query(q=text)
            st.rerun()


def schema() -> None:
    """Tables and columns with their meaning; the most used tables first."""
    wanted = st.text_input(
        "Find a column", placeholder="Find a table or column", label_visibility="collapsed", icon=":material/search:"
    ).lower()
    tables = state.service().pool.sql.schema()
    blocks = []
    for table in sorted(
        tables, key=lambda one: FIRST_TABLES.index(one["table"]) if one["table"] in FIRST_TABLES else len(FIRST_TABLES)
    ):
        columns = [c for c in table["columns"] if wanted in c["name"].lower() or wanted in table["table"].lower()]
        if not columns:
            continue
        rows = "".join(
            f'<dt title="{kit.escape(c["doc"])}">{kit.escape(c["name"])}</dt><dd>{kit.escape(c["type"].lower())}</dd>'
            for c in columns
        )
        is_open = " open" if wanted or table["table"] in FIRST_TABLES[:2] else ""
        blocks.append(
            f'<details{is_open}><summary title="{kit.escape(table["doc"])}">{kit.escape(table["table"])}</summary>'
            f'<dl class="cs-schema">{rows}</dl></details>'
        )
    with st.container(height=700, border=False, key="sql-schema"):
        st.html(f'<div class="cs-tables">{"".join(blocks)}</div>')


page_header("sql")
sql_page()
