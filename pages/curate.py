"""The Curate page: filter the pool, label one, some or all matching rows, and preview the plan."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from core.batch.leases import DEFAULT_CHANNEL
from core.batch.plan import count_plan
from core.pool.query.columns import STEP_COLUMNS, TRAJECTORY_COLUMNS
from core.types import Annotation, AnnotationKind, View
from studio import kit, state
from studio.frame.header import page_header
from studio.kit import column_choice, data_tables, selection
from studio.kit.figures import Tone
from studio.kit.filters import active_filters, filter_panel, selected_values, view_hash
from studio.kit.html_tables import dot_label, html_table
from studio.kit.url_choices import segmented_choice
from studio.widgets.agents.demo import demo_actions
from studio.widgets.curate.distributions import distributions
from studio.widgets.labels.agreement import reviewers_tab
from studio.widgets.labels.panel import QUALITIES, SOURCE
from studio.widgets.labels.queue import review_tab
from studio.widgets.plans.current_plan import counts_now, current_plan, plan_counts
from studio.widgets.plans.funnel import funnel_table
from studio.widgets.plans.recipe_query import effective_recipe, link_params

TABS = {
    "label": "Label",
    "review": "Review",
    "distributions": "Distributions",
    "funnel": "Funnel",
    "reviewers": "Reviewers",
    "history": "History",
}
LEVELS = {"trajectory": "Trajectories", "step": "Steps"}
# Level -> the level of Inspect that shares its choice of columns.
LEVEL_OF = {"trajectory": "trajectories", "step": "steps"}
# Level -> the columns that its table can be sorted by, and the order without a choice.
ORDERS = {
    "trajectory": (tuple(TRAJECTORY_COLUMNS), "started_at desc"),
    "step": (tuple(STEP_COLUMNS), "created_at desc"),
}
KINDS = {
    AnnotationKind.QUALITY: "Quality",
    AnnotationKind.CORRECT: "Correct",
    AnnotationKind.TRAINABLE: "Trainable",
    AnnotationKind.REWARD: "Reward",
    AnnotationKind.TAG: "Tag",
    AnnotationKind.NOTE: "Note",
}
# In pools up to this size, the label's effect on the plan is previewed immediately.
LIVE_PREVIEW_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Action:
    """The selected action: a label on these uids (None: on all matching rows)."""

    target: str
    kind: str
    value: Any
    uids: tuple[str, ...] | None
    n: int

    @property
    def label(self) -> str:
        """The text of the history entry."""
        value = "withdrawn" if self.value is None else self.value
        scope = "selected" if self.uids is not None else "all matching"
        return f"{self.kind}: {value} on {self.n} {scope} {'trajectories' if self.target == 'trajectory' else 'steps'}"


def curate_page() -> None:
    """Filters on the left; the chosen tab on the right."""
    pool = state.service().pool
    if pool.stats.totals()["n_steps"] == 0:
        kit.empty_state(
            "Nothing to curate yet", "Load the demo data, or point an agent at the gateway.", actions=demo_actions
        )
        return
    if state.query("tab") == "history":
        # The history covers the whole pool, so it is shown without filters.
        segmented_choice("Tab", TABS, "tab")
        with kit.error_boundary():
            history()
        return
    left, right = st.columns([2.1, 9], gap="medium")
    with left, st.container(key="facet-column"):
        view = filter_panel("curate", of_trajectories=state.query("level") != "step")
    with right, kit.error_boundary():
        if view is None:
            return
        head = st.container(horizontal=True, vertical_alignment="center")
        with head:
            tab = segmented_choice("Tab", TABS, "tab")
            target = segmented_choice("Level", LEVELS, "level") if tab == "label" else ""
            active_filters(view, key="curate")
        if tab == "label":
            label_tab(view, target, head)
        elif tab == "review":
            review_tab(view)
        elif tab == "distributions":
            distributions(view)
        elif tab == "funnel":
            funnel(view)
        elif tab == "reviewers":
            reviewers_tab(view)


def label_tab(view: View, target: str, head: DeltaGenerator) -> None:
    """The action bar with its preview, above the table in which rows are selected; ``head`` gets the column choice."""
    pool = state.service().pool
    n_rows = pool.trajectories.count(view) if target == "trajectory" else pool.steps.count(view)
    if n_rows == 0:
        kit.empty_state("Nothing matches", "Remove a filter to see more.", icon="filter_alt_off")
        return
    picked = selection.selected_uids(target)
    table = data_tables.trajectory_table() if target == "trajectory" else data_tables.step_table()
    spec = column_choice.with_columns(table, LEVEL_OF[target])
    columns, newest = ORDERS[target]
    sorting = data_tables.Sorting.from_query(columns, newest, "sort")
    with head:
        st.space("stretch")
        column_choice.table_settings(sorting, spec, LEVEL_OF[target])
    bar = st.container(border=True, key="action-bar")
    with st.container(key="curate-table"):
        slot = st.container()
        offset = data_tables.pagination(n_rows, key=f"curate-{target}-{view_hash(view)}", noun=LEVELS[target].lower())
        fetch = pool.trajectories if target == "trajectory" else pool.steps
        with slot:
            rows = fetch.page(view, order=sorting.order, limit=data_tables.PAGE_SIZE, offset=offset)
            shown = f"{view_hash(view)}-{sorting.order}-{offset}-{selection.epoch()}-{'.'.join(spec.columns)}"
            key = f"curate-{target}-{shown}"
            now_picked = data_tables.selectable_table(rows, spec, key=key, picked=picked, height=470, sorting=sorting)
    if now_picked != picked:
        selection.set_selected(target, now_picked)
    with bar:
        action_bar(view, target, now_picked, n_rows)


def action_bar(view: View, target: str, picked: set[str], n_rows: int) -> None:
    """Scope, kind and value of a label, its effect on the plan, and the button that applies it."""
    noun = LEVELS[target].lower()
    scopes = {"picked": f"Selected: {kit.count(len(picked))}", "all": f"All {kit.count(n_rows)} matching"}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        scope = st.segmented_control(
            "Apply to",
            list(scopes),
            default="picked",
            format_func=scopes.__getitem__,
            required=True,
            key=f"scope-{target}",
        )
        kind = st.selectbox("Label", list(KINDS), format_func=KINDS.__getitem__, key="kind", width=130)
        value, ready = value_input(kind)
        chosen = tuple(sorted(picked)) if scope == "picked" else None
        n = len(picked) if scope == "picked" else n_rows
        action = Action(target, kind, value, chosen, n)
        if st.button(
            f"Apply to {kit.count(n)} {noun}",
            type="primary",
            icon=":material/done_all:",
            disabled=not ready or n == 0,
            key="apply",
        ):
            apply_action(action, view)
        # Always there, so that the first selected row does not move the table.
        if st.button("Deselect all", type="tertiary", key="clear-picks", disabled=not picked):
            selection.clear(target)
            st.rerun()
    preview(action, view, ready and n > 0)


def value_input(kind: str) -> tuple[Any, bool]:
    """The input widget for a kind of label. Returns (value, whether it is complete)."""
    if kind == AnnotationKind.QUALITY:
        options = [*QUALITIES, "withdraw"]
        picked = st.segmented_control("Value", options, default="bad", required=True, key="value-quality")
        return (None if picked == "withdraw" else picked), True
    if kind == AnnotationKind.CORRECT:
        verdict = {"correct": True, "wrong": False, "withdraw": None}
        picked = st.segmented_control("Value", list(verdict), default="wrong", required=True, key="value-correct")
        return verdict[picked], True
    if kind == AnnotationKind.TRAINABLE:
        rule = {"off": False, "on": True, "by rule": None}
        picked = st.segmented_control("Value", list(rule), default="off", required=True, key="value-trainable")
        return rule[picked], True
    if kind == AnnotationKind.REWARD:
        number = st.number_input(
            "Value", value=None, placeholder="reward", format="%.4g", key="value-reward", width=130
        )
        return number, number is not None
    text = st.text_input(
        "Value",
        key=f"value-{kind}",
        placeholder="name, or -name to remove it" if kind == "tag" else "text",
        width=240,
    )
    return text.strip(), bool(text.strip())


def apply_action(action: Action, view: View) -> None:
    """Append the labels as one entry of the history."""
    service = state.service()
    author = state.author()
    if action.uids is None:
        service.pool.labels.annotate_view(
            view, action.target, action.kind, action.value, author=author, source=SOURCE, label=action.label
        )
    else:
        service.pool.labels.annotate(opinions(action, author), label=action.label)
    selection.clear(action.target)
    st.toast(f"{kit.escape_markdown(action.label)}. Undo it under History.", icon=":material/check:")
    st.rerun()


def opinions(action: Action, author: str) -> list[Annotation]:
    """The annotations of the action on the selected items."""
    field, at = f"{action.target}_uid", state.service().clock()
    return [Annotation(action.kind, action.value, author, SOURCE, at, **{field: uid}) for uid in action.uids or ()]


def preview(action: Action, view: View, ready: bool) -> None:
    """The active plan before and after the action, computed by the plan function."""
    pool = state.service().pool
    recipe, origin = effective_recipe(channel_of(view))
    before = plan_counts(counts_now(View(), recipe))
    line = f"Active plan: {recipe.estimator.title} ({origin}), channel {recipe.channel}, whole pool"
    affected(action, view, ready)
    if not ready:
        show_change(before, None, f"{line}. Select rows, or apply to all matching rows.")
        return
    if recipe.dataset is not None:
        show_change(before, None, f"{line}. Version {recipe.dataset} is frozen: labels do not change it.")
        return
    if pool.stats.totals()["n_steps"] > LIVE_PREVIEW_STEPS and not st.toggle("Preview the plan", key="preview"):
        show_change(before, None, line)
        return
    if action.uids is None:
        with pool.labels.previewing_view(view, action.target, action.kind, action.value, source=SOURCE):
            after = count_plan(pool, View(), recipe)
    else:
        with pool.labels.previewing(opinions(action, state.author())):
            after = count_plan(pool, View(), recipe)
    show_change(before, plan_counts(after), line)


def affected(action: Action, view: View, ready: bool) -> None:
    """Counts of everything that the label affects, not only of the rows on this page; dashes before it is chosen."""
    counts: dict[str, int | None] = dict.fromkeys(("n_groups", "n_trajectories", "n_steps", "n_tokens"))
    if ready:
        target_view = view if action.uids is None else View({f"{action.target}_uid": list(action.uids)})
        counts |= state.service().pool.stats.reach(target_view, action.target)
    kit.figures(
        [
            kit.Figure("Groups affected", kit.count(counts["n_groups"])),
            kit.Figure("Trajectories", kit.count(counts["n_trajectories"])),
            kit.Figure("Steps", kit.count(counts["n_steps"])),
            kit.Figure("Tokens", kit.compact(counts["n_tokens"])),
        ],
        dense=True,
    )


def show_change(before: dict[str, int], after: dict[str, int] | None, line: str) -> None:
    """Counts of the plan now and after the action."""
    cells = []
    for name, now in before.items():
        then = now if after is None else after[name]
        tone: Tone = "" if then == now else "warn" if then < now else "good"
        value = kit.compact(now) if then == now else f"{kit.compact(now)} → {kit.compact(then)}"
        diff = "" if then == now else f"{then - now:+,}".replace("-", "−")
        cells.append(kit.Figure(f"Plan: {name}", value, sub=diff, tone=tone))
    kit.figures(cells, dense=True)
    st.html(kit.caption_html(line))


def funnel(view: View) -> None:
    """The funnel from captured to ready: what each reason excludes from the active plan."""
    pool = state.service().pool
    counts = pool.groups.count(view), pool.trajectories.count(view), pool.steps.count(view)
    recipe, origin = effective_recipe(channel_of(view))
    plan = current_plan(view, recipe)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"{recipe.estimator.title} ({origin}), channel {kit.escape_markdown(recipe.channel)}.")
        if st.button("Open it in Batch", icon=":material/inventory_2:", type="tertiary", key="funnel-batch"):
            state.goto("batch", **link_params(view, recipe))
    funnel_table(plan, counts)


def channel_of(view: View) -> str:
    """The channel that the filters name; ``train`` when they name none or several."""
    named = selected_values(view, "channel")
    return str(named[0]) if len(named) == 1 and named[0] is not None else DEFAULT_CHANNEL


def history() -> None:
    """Every labelling action, newest first, with undo and redo."""
    service = state.service()
    pool = service.pool
    actions = pool.labels.actions(limit=100)
    if not actions:
        kit.empty_state("No labels yet", "Labels are listed here and can be undone.", icon="history")
        return
    newest = next((row for row in actions if not row["undone"]), None)
    undone = list(takewhile(lambda row: row["undone"], actions))
    with st.container(horizontal=True):
        if st.button("Undo the last", icon=":material/undo:", disabled=newest is None, key="undo-last") and newest:
            pool.labels.undo(newest["action_uid"])
            st.rerun()
        if st.button("Redo", icon=":material/redo:", disabled=not undone, key="redo-last"):
            pool.labels.redo(undone[-1]["action_uid"])
            st.rerun()
        if st.button("Open the plan", icon=":material/inventory_2:", key="to-batch"):
            state.goto("batch", **link_params(View(), effective_recipe(DEFAULT_CHANNEL)[0]))
    names = {row["action_uid"]: f"{row['label'] or row['action_uid']}" for row in actions}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox("One entry", list(names), format_func=names.__getitem__, key="one-action", width=460)
        row = next(row for row in actions if row["action_uid"] == chosen)
        if st.button("Redo it" if row["undone"] else "Undo it", key="switch-one"):
            (pool.labels.redo if row["undone"] else pool.labels.undo)(chosen)
            st.rerun()
    html_table(
        ("state", "action", "kinds", "annotations", "author", "when"),
        [
            (
                dot_label("undone", "muted") if row["undone"] else dot_label("counts", "good"),
                kit.escape(row["label"] or row["action_uid"]),
                kit.escape(", ".join(row["kinds"] or [])),
                kit.count(row["n_annotations"]),
                kit.escape(row["author"]),
                kit.escape(kit.ago(row["created_at"], service.clock())),
            )
            for row in actions
        ],
        numeric=(3,),
    )


page_header("curate")
curate_page()
