"""The choice of a table's columns and its order, kept for the next visit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from studio import preferences
from studio.kit.data_tables import Sorting, TableSpec


def with_columns(spec: TableSpec, level: str) -> TableSpec:
    """The table with the columns that this author chose, or its own columns."""
    kept = preferences.read(f"columns.{level}")
    if not isinstance(kept, list):
        return spec
    known = [name for name in kept if name in spec.config]
    return replace(spec, columns=known or spec.columns)


def table_settings(sorting: Sorting, spec: TableSpec, level: str) -> None:
    """Choice of columns and order, in a popover."""
    order = sorting.order
    name, descending = sorting.first
    labels = {name: title(spec, name) for name in spec.config}
    with st.popover("Columns", icon=":material/view_column:"):
        chosen = st.multiselect(
            "Columns, in this order",
            list(labels),
            default=list(spec.columns),
            format_func=labels.__getitem__,
            key=f"columns-{level}-{'.'.join(spec.columns)}",
        )
        if chosen and chosen != list(spec.columns):
            preferences.write(f"columns.{level}", chosen)
            st.rerun()
        if preferences.read(f"columns.{level}") is not None and st.button("Reset", key=f"columns-reset-{level}"):
            preferences.write(f"columns.{level}", None)
            st.rerun()
        first = st.selectbox(
            "Order by",
            sorting.columns,
            index=list(sorting.columns).index(name),
            format_func=lambda one: labels.get(one, one),
            key=f"order-{level}-{order}",
        )
        way = st.segmented_control(
            "Direction",
            ["desc", "asc"],
            default="desc" if descending else "asc",
            format_func={"desc": "Highest first", "asc": "Lowest first"}.__getitem__,
            required=True,
            label_visibility="collapsed",
            key=f"way-{level}-{order}",
        )
        if (first, way == "desc") != (name, descending):
            sorting.choose(first, descending=way == "desc")
            st.rerun()


def title(spec: TableSpec, name: str) -> str:
    """A column's heading."""
    config: Any = spec.config.get(name) or {}
    return str(config.get("label") or name)
