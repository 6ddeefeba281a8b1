"""Filters over the pool: facets with counts, ranges, text search, the WHERE box. The filters are kept in the URL.

For pages::

    view = filter_panel("inspect")     # draws the column; returns the URL's view, or None if it does not compile
    view = filter_panel("inspect", of_trajectories=True)     # names in the WHERE box mean the trajectory's
    active_filters(view)               # a chip per filter above a table; a click removes it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st

from core.errors import StudioError
from core.pool.query.views import FILTERS, check_view
from core.pool.query.where_levels import TRAJECTORY_NAMES, ambiguous_names, for_trajectories
from core.pool.state.findings import FINDINGS
from core.types import View
from studio import components, state
from studio.glossary import define
from studio.kit.callouts import show_error
from studio.kit.format import escape_markdown
from studio.kit.range_filters import range_sliders

FACETS: dict[str, str] = {
    "channel": "Channel",
    "agent": "Agent",
    "run": "Run",
    "model": "Model",
    "source": "Source",
    "quality": "Step quality",
    "trajectory_quality": "Trajectory quality",
    "findings": "Findings",
    "tags": "Tags",
    "correct": "Step correct",
    "trajectory_correct": "Trajectory correct",
    "trainable": "Trainable",
    "complete": "Complete",
    "call_kind": "Call kind",
    "status": "Status",
    "transition": "Transition",
    "token_source": "Token source",
    "finish_reason": "Finish reason",
    "policy_version": "Policy version",
    "identity_source": "Identity source",
    "engine": "Engine",
}
"""Facet column -> label, in the order shown."""

CLOSED_FACETS = ("source", "transition", "token_source", "finish_reason", "policy_version", "identity_source", "engine")
"""Facets that start closed when there are more than FEW_FACETS."""

FEW_FACETS = 5
"""Up to this many facets all start open."""

RANGES: dict[str, str] = {
    "trajectory_reward": "Trajectory reward",
    "reward": "Step reward",
    "n_prompt_tokens": "Prompt tokens",
    "n_response_tokens": "Response tokens",
    "latency_s": "Latency, s",
    "step_index": "Step index",
    "n_steps": "Trajectory length",
    "staleness": "Staleness",
    "difficulty": "Difficulty",
    "policy_version": "Policy version",
}
OTHER_FILTERS = ("tags", "has_notes", "notes", "ready", "correct_state", "created_at")
"""Filters of the popover that are neither ranges nor states."""
STATES: dict[str, str] = {"trajectory_reward_state": "Trajectory", "reward_state": "Step"}
TRAJECTORY_FACET_STEPS = 50_000
"""In pools up to this size, facets beside a list of trajectories count trajectories; in larger ones, steps."""

CountFacets = Callable[[View, Sequence[str]], dict[str, list[tuple[Any, int]]]]
WHERE_HELP = (
    "A condition over the step columns, for instance `n_response_tokens > 200 and trajectory_reward < 1`. "
    "It can only filter."
)


def view_hash(view: View) -> str:
    """A short hash of a view. Part of widget keys, so that a selection is dropped when the rows change."""
    text = json.dumps({"filters": dict(view.filters), "where": view.where}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def with_filter(view: View, name: str, value: Any) -> View:
    """The view with one filter set, or without it for None."""
    filters = {key: kept for key, kept in view.filters.items() if key != name}
    if value is not None:
        filters[name] = value
    return View(filters, view.where)


def toggled(view: View, name: str, value: Any) -> View:
    """The view after a click on one facet value.

    >>> toggled(View({"agent": "a"}), "agent", "b").filters
    {'agent': ['a', 'b']}
    >>> toggled(View({"agent": ["a"]}), "agent", "a").filters
    {}
    """
    kind = FILTERS[name].kind
    if kind in ("flag", "range", "state"):
        return with_filter(view, name, None if selected_values(view, name) == [value] else value)
    chosen = selected_values(view, name)
    left = [item for item in chosen if item != value] if value in chosen else [*chosen, value]
    return with_filter(view, name, left or None)


def selected_values(view: View, name: str) -> list[Any]:
    """The values of a filter as a list; empty when it isn't set. A range with two ends selects no single value."""
    if name not in view.filters:
        return []
    value = view.filters[name]
    if FILTERS[name].kind == "range" and isinstance(value, list | tuple | dict):
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def filter_panel(key: str, *, of_trajectories: bool = False) -> View | None:
    """Draw the filter column. Changes go to the URL and rerun. Returns None when the URL's view does not compile.

    Args:
        of_trajectories: the page lists trajectories, so names in a typed condition mean the trajectory's.
    """
    view = state.view_from_query()
    _search(view, key)
    _where(view, key, of_trajectories)
    try:
        check_view(view)
    except StudioError as error:
        show_error(error)
        if st.button("Clear filters", key=f"{key}-clear-bad", width="stretch"):
            apply_view(View())
        return None
    saved_views(view)
    _ranges(view, key)
    range_sliders(view, key, lambda name, ends: apply_view(with_filter(view, name, ends)))
    pool = state.service().pool
    by_trajectory = of_trajectories and pool.steps.count() <= TRAJECTORY_FACET_STEPS
    rows = facet_rows(view, pool.stats.trajectory_facets if by_trajectory else pool.stats.facets)
    noun = "trajectories" if by_trajectory else "steps"
    if rows:
        st.html(f'<div class="cs-note">Counts of {noun}</div>')
    closed = CLOSED_FACETS if len(rows) > FEW_FACETS else ()
    components.facet_list(
        facets=rows, noun=noun, closed=closed, key=f"{key}-facets", toggled=partial(_toggle, view, f"{key}-facets")
    )
    return view


def _toggle(view: View, key: str) -> None:
    # A callback runs before the page is drawn, so one click draws it once.
    clicked = st.session_state[key]["toggle"]
    if clicked is not None:
        state.set_view(toggled(view, clicked["column"], clicked["value"]))
        state.set_query(page=None)


def facet_rows(view: View, count: CountFacets) -> list[dict[str, Any]]:
    """Facets for the component. Counts of a facet ignore its own filter, so that its other values stay visible."""
    filtered = [name for name in FACETS if name in view.filters]
    counted = count(view, [name for name in FACETS if name not in filtered])
    for name in filtered:
        counted |= count(with_filter(view, name, None), [name])
    rows = []
    for name, label in FACETS.items():
        kind = FILTERS[name].kind
        # A flag is true or false; unlabelled rows are selected by the state filter, not by a value.
        values = [[value, n] for value, n in counted.get(name, []) if value is not None or kind != "flag"]
        chosen = selected_values(view, name)
        values += [[value, 0] for value in chosen if value not in [shown for shown, _ in values]]
        if len(values) < (1 if kind == "list" else 2) and not chosen:
            continue
        rows.append(
            {
                "column": name,
                "label": label,
                "help": define(name) or define(label.lower()) or FILTERS[name].doc,
                "values": values,
                "hints": FINDINGS if name == "findings" else {},
                "selected": chosen,
            }
        )
    return rows


def active_filters(view: View, *, key: str) -> None:
    """The filters of the view, each a button that removes it."""
    if not view.filters and not view.where:
        return
    with st.container(horizontal=True, gap="xsmall", key=f"{key}-chips"):
        for name, value in view.filters.items():
            if st.button(
                escape_markdown(describe(name, value)),
                icon=":material/close:",
                key=f"{key}-off-{name}",
                help="Remove this filter",
            ):
                apply_view(with_filter(view, name, None))
        if view.where and st.button(
            f"where {escape_markdown(view.where)}", icon=":material/close:", key=f"{key}-off-where"
        ):
            apply_view(View(view.filters, ""))
        if st.button("Clear all", type="tertiary", key=f"{key}-off-all"):
            apply_view(View())


def describe(name: str, value: Any) -> str:
    """One filter as text.

    >>> describe("reward", [0.5, None]), describe("agent", ["a", None]), describe("complete", True)
    ('reward ≥ 0.5', 'agent: a, none', 'complete: yes')
    """
    if FILTERS[name].kind == "range" and isinstance(value, list | tuple):
        low, high = value
        parts = [f"≥ {low:g}" if low is not None else "", f"≤ {high:g}" if high is not None else ""]
        return f"{name} {' and '.join(part for part in parts if part)}"
    if isinstance(value, bool):
        return f"{name}: {'yes' if value else 'no'}"
    values = value if isinstance(value, list | tuple) else [value]
    shown = ", ".join("none" if item is None else str(item) for item in values[:4])
    return f"{name}: {shown}" + (f" and {len(values) - 4} more" if len(values) > 4 else "")


def apply_view(view: View) -> None:
    """Put a view into the URL, go to its first page, rerun."""
    state.set_view(view)
    state.set_query(page=None)
    st.rerun()


def saved_views(view: View) -> None:
    """Open, save or delete a view by name."""
    views = state.service().pool.views
    with st.popover("Saved views", icon=":material/bookmark:", width="stretch"):
        for row in views.all():
            with st.container(horizontal=True, gap="xsmall"):
                if st.button(escape_markdown(row["name"]), key=f"view-{row['name']}", width="stretch"):
                    apply_view(row["view"])
                if st.button(
                    "Delete this view", icon=":material/delete:", key=f"forget-{row['name']}", help="Delete this view"
                ):
                    views.delete(row["name"])
                    st.rerun()
        with st.form("save-view", border=False, clear_on_submit=True):
            name = st.text_input("View name")
            if st.form_submit_button("Save this view", width="stretch") and name.strip():
                views.save(name.strip(), view)
                st.rerun()


def _search(view: View, key: str) -> None:
    current = str(view.filters.get("text") or "")
    text = st.text_input(
        "Search messages",
        value=current,
        key=f"{key}-text-{view_hash(View({'text': current}))}",
        placeholder="Search messages",
        label_visibility="collapsed",
        icon=":material/search:",
    )
    if text.strip() != current:
        apply_view(with_filter(view, "text", text.strip() or None))


def _where(view: View, key: str, of_trajectories: bool) -> None:
    typed = st.text_input(
        "WHERE",
        value=view.where,
        key=f"{key}-where-{view_hash(View(where=view.where))}",
        placeholder=f"WHERE {'reward < 0.5' if of_trajectories else 'latency_s > 5'}",
        label_visibility="collapsed",
        icon=":material/code:",
        help=WHERE_HELP,
    ).strip()
    if typed == view.where:
        _name_hint(view, key, of_trajectories)
        return
    try:
        written = for_trajectories(typed) if of_trajectories else typed
        wanted = View(view.filters, written)
        # Some conditions fail only on the data (a text compared with a number); the count is drawn anyway.
        state.service().pool.steps.count(wanted)
    except StudioError as error:
        # The table keeps the condition that it has.
        show_error(error)
        return
    st.session_state[f"{key}-where-note"] = (written, ambiguous_names(typed) if written != typed else [])
    apply_view(wanted)


def _name_hint(view: View, key: str, of_trajectories: bool) -> None:
    """Under the WHERE box: whose reward, quality and so on the condition means."""
    try:
        names = ambiguous_names(view.where)
    except StudioError:
        return
    if names:
        of_both = ", ".join(f"`{name}` is the step's, `{TRAJECTORY_NAMES[name]}` the trajectory's" for name in names)
        st.caption(f"{of_both}.")
        if of_trajectories and st.button("Use the trajectory's", key=f"{key}-where-swap", width="stretch"):
            apply_view(View(view.filters, for_trajectories(view.where)))
        return
    written, replaced = st.session_state.get(f"{key}-where-note", ("", []))
    if of_trajectories and replaced and written == view.where:
        st.caption(
            "; ".join(f"`{name}` means `{TRAJECTORY_NAMES[name]}` here" for name in replaced)
            + ". Write `step_reward` for a step's."
        )


def _ranges(view: View, key: str) -> None:
    n_on = sum(name in view.filters for name in (*RANGES, *STATES, *OTHER_FILTERS))
    label = f"More filters · {n_on}" if n_on else "More filters"
    with st.popover(label, icon=":material/tune:", width="stretch"), st.form(f"{key}-more", border=False):
        chosen = view
        for name, title in RANGES.items():
            value = view.filters.get(name)
            low, high = value if isinstance(value, list | tuple) else (value, value)
            left, right = st.columns(2)
            first = left.number_input(f"{title} from", value=_float(low), key=f"{key}-{name}-low", format="%.6g")
            last = right.number_input("to", value=_float(high), key=f"{key}-{name}-high", format="%.6g")
            chosen = with_filter(chosen, name, None if first is None and last is None else [first, last])
        for name, title in STATES.items():
            picked = st.segmented_control(
                f"{title} reward", ["scored", "unscored"], default=view.filters.get(name), key=f"{key}-{name}"
            )
            chosen = with_filter(chosen, name, picked)
        labelled = st.segmented_control(
            "Step correctness",
            ["labelled", "unlabelled"],
            default=view.filters.get("correct_state"),
            key=f"{key}-correct",
        )
        chosen = with_filter(chosen, "correct_state", labelled)
        ready = view.filters.get("ready")
        readiness = st.segmented_control(
            "Ready to train",
            ["yes", "no"],
            default=None if not isinstance(ready, bool) else "yes" if ready else "no",
            key=f"{key}-ready",
            help=FILTERS["ready"].doc,
        )
        if not isinstance(ready, dict):
            chosen = with_filter(chosen, "ready", None if readiness is None else readiness == "yes")
        chosen = _dates(chosen, key)
        tags = view.filters.get("tags")
        typed = st.text_input("Tags, any of", value=", ".join(_texts(tags)), key=f"{key}-tags")
        chosen = with_filter(chosen, "tags", [tag.strip() for tag in typed.split(",") if tag.strip()] or None)
        text = st.text_input("Text in notes", value=str(view.filters.get("notes") or ""), key=f"{key}-notes-text")
        chosen = with_filter(chosen, "notes", text.strip() or None)
        notes = st.checkbox("Has a note", value=bool(view.filters.get("has_notes")), key=f"{key}-notes")
        chosen = with_filter(chosen, "has_notes", True if notes else None)
        if st.form_submit_button("Apply", type="primary", width="stretch"):
            apply_view(chosen)


def _dates(view: View, key: str) -> View:
    """A time range, ISO 8601; either end may stay empty."""
    current = view.filters.get("created_at")
    bounds = list(current) if isinstance(current, list | tuple) and len(current) == 2 else [None, None]
    left, right = st.columns(2)
    after = left.text_input("From, UTC", value=str(bounds[0] or ""), key=f"{key}-after", placeholder="2026-11-21T08:00")
    before = right.text_input("before", value=str(bounds[1] or ""), key=f"{key}-before", placeholder="2026-11-22")
    wanted = [after.strip() or None, before.strip() or None]
    return with_filter(view, "created_at", wanted if any(wanted) else None)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _texts(value: Any) -> Sequence[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
