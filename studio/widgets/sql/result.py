"""A result of the SQL console: as a table, as a chart, as a view over the pool."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
import streamlit as st

from core.types import View
from studio import kit, state
from studio.charts import theme

KEYS = {"step_uid": "steps", "trajectory_uid": "trajectories", "prompt_uid": "groups"}
"""Columns that name rows of the pool -> the level of Inspect that lists them."""
LINK_MAX = 500
KINDS = {"bar": "Bars", "line": "Line", "scatter": "Points"}


LINK = "↗"
"""Heading of the column with links to Inspect."""
LEVELS = {"step_uid": "step", "trajectory_uid": "trajectory", "prompt_uid": "group"}
"""Columns that name rows of the pool, the narrowest first -> the parameter of Inspect that opens one."""


def as_table(table: pa.Table) -> None:
    """All rows; one that names a step, a trajectory or a prompt group has a link to Inspect."""
    if table.num_columns == 0 or len(table) == 0:
        kit.empty_state("No rows", "The query returned no rows.", icon="table_rows")
        return
    frame = table.to_pandas()
    links = row_links(table)
    if links is not None and LINK not in frame:
        frame.insert(0, LINK, links)
    column = st.column_config.LinkColumn(
        width=36, display_text=":material/open_in_new:", help="Open in Inspect, in a new tab", pinned=True
    )
    st.dataframe(
        frame, hide_index=True, height=min(560, 38 + 29 * len(table)), row_height=29, column_config={LINK: column}
    )


def row_links(table: pa.Table) -> list[str | None] | None:
    """For each row the address of the narrowest thing that it names; None if no column names one."""
    names = [name for name in LEVELS if name in table.column_names]
    if not names:
        return None
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [
        next((state.link("inspect", **{LEVELS[name]: uid}) for name, uid in zip(names, row, strict=True) if uid), None)
        for row in rows
    ]


def as_chart(table: pa.Table) -> None:
    """Two columns as bars, a line or points, split by a third."""
    names = table.column_names
    numeric = [n for n in names if is_number(table.schema.field(n).type)]
    if not numeric or len(names) < 2 or len(table) == 0:
        kit.empty_state(
            "No chart for this result", "A chart needs rows, a numeric column and a second column.", icon="bar_chart"
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        first = next((n for n in names if n not in numeric), names[0])
        x = st.selectbox("X", names, index=names.index(first), key="sql-x")
        y = st.selectbox("Y", numeric, index=next((i for i, n in enumerate(numeric) if n != x), 0), key="sql-y")
        part = st.selectbox("Split by", [None, *names], format_func=lambda n: n or "nothing", key="sql-part")
        kind = st.segmented_control(
            "Chart type", list(KINDS), default="bar", format_func=KINDS.__getitem__, required=True, key="sql-kind"
        )
    kit.plot(chart_figure(table, x, y, part, kind), key=f"sql-chart-{x}-{y}-{part}-{kind}", alt=f"{y} over {x}")


def chart_figure(table: pa.Table, x: str, y: str, part: str | None, kind: str) -> go.Figure:
    """The figure of ``as_chart``."""
    rows = table.select(list(dict.fromkeys([x, y, *([part] if part else [])]))).to_pylist()
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[part] if part else None, []).append(row)
    figure = theme.figure(height=420, showlegend=part is not None)
    for place, (name, group_rows) in enumerate(groups.items()):
        xs, ys = [axis_value(row[x]) for row in group_rows], [row[y] for row in group_rows]
        look: dict[str, Any] = {"x": xs, "y": ys, "name": theme.escape(name)}
        colour = theme.SERIES[place % len(theme.SERIES)]
        if kind == "bar":
            figure.add_trace(go.Bar(marker={"color": colour}, **look))
        else:
            mode = "lines" if kind == "line" else "markers"
            figure.add_trace(go.Scatter(mode=mode, line={"color": colour}, marker={"color": colour}, **look))
    figure.update_xaxes(title=theme.escape(x))
    figure.update_yaxes(title=theme.escape(y))
    return figure


def axis_value(value: Any) -> Any:
    """A value on an axis; text is escaped."""
    return theme.escape(value) if isinstance(value, str) else value


def as_view(table: pa.Table) -> None:
    """The rows whose uids are in the result, as a view: to open, or to save under a name."""
    key = next((name for name in KEYS if name in table.column_names), None)
    if key is None:
        kit.empty_state(
            "The result has no uids",
            f"Select one of {', '.join(KEYS)}; then the rows can be made a view.",
            icon="bookmark",
        )
        return
    uids = list(dict.fromkeys(str(uid) for uid in table[key].to_pylist() if uid is not None))
    view = View({key: uids})
    pool = state.service().pool
    n_steps = kit.count(pool.steps.count(view))
    st.html(f'<div class="cs-note"><b>{len(uids):,}</b> {KEYS[key]} by {key}, {n_steps} steps</div>')
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        short = len(uids) <= LINK_MAX
        if st.button(
            "Open in Inspect",
            icon=":material/frame_inspect:",
            disabled=not uids or not short,
            help=None if short else f"A link holds {LINK_MAX} at most; save it under a name instead",
        ):
            state.goto("inspect", level=KEYS[key], **state.view_to_query(view))
        if st.button("Review in Curate", icon=":material/rate_review:", disabled=not uids or not short):
            level = {"steps": "step", "trajectories": "trajectory", "groups": "group"}[KEYS[key]]
            state.goto("curate", tab="review", level=level, **state.view_to_query(view))
    with st.form("sql-save", border=False), st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.text_input("Name", placeholder="name", width=260)
        if st.form_submit_button("Save as a view", icon=":material/bookmark_add:") and name.strip():
            pool.views.save(name.strip(), view)
            st.toast(f"Saved: {kit.escape_markdown(name.strip())}. Curate lists it.", icon=":material/check:")


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type can be the y axis."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
