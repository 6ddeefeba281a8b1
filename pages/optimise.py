"""The Optimise page: prefix trees, packed rows and attention masks of the plan, exactly as exported."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import streamlit as st

from core.batch.plan import Plan
from core.batch.recipe import Recipe, parse_recipe
from core.tree.build import PackedTree, build
from core.tree.nodes import tree_nodes
from core.tree.sequences import Sequences
from studio import components, kit, state
from studio.charts.mask import HEATMAP_TOKENS, mask_heatmap, mask_nodes
from studio.charts.plan import group_tokens, groups_per_bar
from studio.charts.tree import rows_drawing, step_order, tree_drawing
from studio.frame.header import page_header
from studio.kit.data_tables import page_from_query, pagination
from studio.kit.filters import active_filters
from studio.kit.url_choices import segmented_choice
from studio.widgets.agents.demo import demo_actions
from studio.widgets.optimise.packing_figures import estimated_figures, exact_figures
from studio.widgets.optimise.savings import group_names, savings
from studio.widgets.optimise.tree_details import (
    branch_points,
    drift_by_node,
    drift_list,
    drifts,
    node_panel,
    owner_line,
    shared_tokenizer,
    step_facts,
)
from studio.widgets.plans.current_plan import current_plan
from studio.widgets.plans.packing import packed_layout, packing_controls, packing_needed, sample_packing
from studio.widgets.plans.recipe_query import link_params, recipe_to_query, safe_recipe

TABS = {"tree": "Prefix tree", "mask": "Attention mask", "rows": "Packed rows", "groups": "Savings"}
BUDGETS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ROW = "row:"
# Packed rows per page; groups and rows offered in the list (others are entered by name).
ROWS, LISTED = 100, 200
SAVED_BY = {"group": "Prompt group", "step": "Step of the trajectory", "agent": "Agent"}


def optimise_page() -> None:
    """Statistics of the plan, then its trees, rows or masks."""
    if state.service().pool.stats.totals()["n_steps"] == 0:
        kit.empty_state("No tokens yet", "Load the demo data or capture some calls first.", actions=demo_actions)
        return
    view = state.view_from_query()
    recipe = safe_recipe()
    active_filters(view, key="optimise")
    with st.spinner("Planning and packing…", show_time=True):
        plan = current_plan(view, recipe)
        layout = packed_layout(plan)
        if layout is not None or len(plan.steps) == 0:
            exact_figures(plan)
        else:
            estimated_figures(plan, sample_packing(plan))
            packing_controls(plan)
    if len(plan.steps) == 0:
        reason = max(plan.excluded, key=lambda item: item.n_steps, default=None)
        text = "No step matches view and channel." if reason is None else f"{reason.label}: {reason.n_steps} steps."
        kit.empty_state("The plan is empty", text, icon="account_tree")
        if st.button("Open the recipe", icon=":material/inventory_2:"):
            state.goto("batch", **link_params(view, recipe))
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        tab = segmented_choice("Drawing", TABS, "tab")
        shown = picker(plan) if tab in ("tree", "mask") else ""
        st.space("stretch")
        budget_slider(recipe)
        if st.button("Recipe", icon=":material/inventory_2:", help="Change the plan"):
            state.goto("batch", **link_params(view, recipe))
    with kit.error_boundary():
        if tab in ("tree", "mask"):
            {"tree": tree_tab, "mask": mask_tab}[tab](plan, shown)
        else:
            {"rows": rows_tab, "groups": groups_tab}[tab](plan)


def budget_slider(recipe: Recipe) -> None:
    """A slider for the token budget of a packed row. A change plans again."""
    options = sorted({*BUDGETS, recipe.token_budget})
    chosen = st.select_slider(
        "Tokens per packed row", options, recipe.token_budget, format_func=lambda n: f"{n:,}", width=180
    )
    if chosen != recipe.token_budget:
        replan(recipe, token_budget=chosen)


def replan(recipe: Recipe, **changed: int) -> None:
    """Plan again with changed settings, which are kept in the URL."""
    wanted = parse_recipe({**recipe.model_dump(mode="json"), **changed})
    state.set_query(recipe=recipe_to_query(wanted), show=None, node=None)
    st.rerun()


def picker(plan: Plan) -> str:
    """A select box for the tree of a prompt group or packed row. The choice is kept in the URL."""
    names = group_names(plan)
    n_of = np.bincount(plan.trajectories["group"].to_numpy(), minlength=len(names)).tolist()
    number = {uid: place for place, uid in enumerate(names)}
    row_tokens = plan.layout.row_tokens.tolist() if plan.is_packed else []

    def title(one: str) -> str:
        if one in number:
            return f"Group {one} · {n_of[number[one]]} trajectories"
        index = row_number(one)
        if index is None or index >= len(row_tokens):
            return one
        return f"Packed row {index} · {row_tokens[index]:,} tokens"

    def is_shown(one: str | None) -> bool:
        return one is not None and (one in number or title(one) != one)

    requested = state.query("show")
    current = requested if requested is not None and is_shown(requested) else names[0]
    listed = names[:LISTED] + [f"{ROW}{index}" for index in range(len(row_tokens))][:LISTED]
    cut = len(names) > LISTED or len(row_tokens) > LISTED
    options = list(dict.fromkeys([current, *listed] if current not in listed else listed))
    chosen = st.selectbox(
        "Show",
        options,
        index=options.index(current),
        format_func=title,
        width=310,
        label_visibility="collapsed",
        accept_new_options=cut,
        help=f"Lists the first {LISTED} groups and rows. For others, type the group's id, or row and its number."
        if cut
        else None,
    )
    index = row_number(chosen or current)
    wanted = (chosen or current).strip() if index is None else f"{ROW}{index}"
    if not is_shown(wanted):
        st.caption(f":orange[No group or row {kit.escape_markdown(wanted)} in this plan.]")
        return current
    if wanted != current:
        state.set_query(show=wanted, node=None)
        st.rerun()
    return current


def row_number(text: str) -> int | None:
    """The number in ``row:12`` or ``row 12``; None for other texts."""
    match = re.fullmatch(r"row[: ]\s*(\d{1,9})", text.strip(), re.IGNORECASE)
    return None if match is None else int(match[1])


def tree_of(plan: Plan, shown: str) -> tuple[PackedTree, Sequences, dict[str, dict[str, Any]]]:
    """The chosen tree (a packed row, or a group as one tree), its sequences, and values that colour its steps."""
    pool = state.service().pool
    names = group_names(plan)
    if shown in names:
        index = np.flatnonzero(plan.steps["group"].to_numpy() == names.index(shown))
        facts = step_facts(plan, index)
        sequences = pool.steps.sequences(list(facts))
        return build(sequences), sequences, facts
    number = row_number(shown) or 0
    order = [part.order for part in plan.layout.rows[number]]
    return *plan.layout.row(pool.training, number), step_facts(plan, np.concatenate(order))


def tree_tab(plan: Plan, shown: str) -> None:
    """The tree, and details of the clicked node."""
    tree, sequences, facts = tree_of(plan, shown)
    nodes = tree_nodes(tree)
    texts = shared_tokenizer(sequences)
    drifted = drifts(tree, nodes, sequences, facts)
    drawing = tree_drawing(tree, nodes, sequences, facts, texts.decode, drift_by_node(drifted))
    requested = state.query("node")
    node = int(requested) if requested and requested.isdigit() and int(requested) < len(nodes) else None
    left, right = st.columns([7, 3], gap="medium")
    with left:
        clicked = components.tree_canvas(
            uid=f"{plan.hash[:12]}-{shown}",
            nodes=drawing.nodes,
            labels=drawing.labels,
            modes=drawing.modes,
            n_lanes=drawing.n_lanes,
            n_sequences=drawing.n_sequences,
            n_original=drawing.n_original,
            n_packed=drawing.n_packed,
            selected=node,
            colour=state.query("colour"),
            height=500,
            key="tree",
            coloured=lambda: state.set_query(colour=st.session_state["tree"]["colour"]),
        )
        if clicked is not None and clicked != node:
            state.set_query(node=clicked)
            st.rerun()
    with right:
        if node is None:
            kit.section("Node", "click one in the tree")
            branch_points(tree, nodes, texts)
            drift_list(drifted, facts)
        else:
            node_panel(tree, nodes, sequences, node, texts, facts)


def mask_tab(plan: Plan, shown: str) -> None:
    """The attention mask as blocks on canvas, and as a plotly heat map beside it."""
    tree, sequences, facts = tree_of(plan, shown)
    nodes = tree_nodes(tree)
    texts = shared_tokenizer(sequences)
    order = step_order(tree, nodes, sequences)
    left, right = st.columns([6.4, 3.6], gap="medium")
    with left:
        components.mask_canvas(
            uid=f"{plan.hash[:12]}-{shown}",
            nodes=mask_nodes(tree, nodes),
            labels=[owner_line(order, nodes, i, facts) for i in range(len(nodes))],
            ids=tree.tokens,
            vocab=texts.vocab(tree.tokens),
            n_tokens=tree.n_packed,
            n_visible=tree.attention_pairs,
            n_sequences=len(order),
            height=560,
            key="mask",
        )
    with right:
        kit.section("How to read it", "A token sees its own branch up to itself.")
        lengths = sequences.lengths
        separate = int((lengths * (lengths + 1) // 2).sum())
        causal = tree.n_packed * (tree.n_packed + 1) // 2
        kit.facts(
            [
                ("packed tokens", kit.count(tree.n_packed)),
                (
                    "visible pairs",
                    f"{kit.count(tree.attention_pairs)}, {kit.percent(tree.attention_pairs, causal)} of causal",
                ),
                ("separate pairs", f"{kit.count(separate)}, {kit.percent(tree.attention_pairs, separate)} are left"),
                ("nodes", kit.count(len(nodes))),
            ]
        )
        if tree.n_packed <= HEATMAP_TOKENS:
            st.caption("Heat map, one cell per pair")
        else:
            st.caption("Share of visible pairs per cell, the whole row")
        kit.plot(mask_heatmap(tree, height=380), key="mask-heat", alt="Heat map of the attention mask")


def rows_tab(plan: Plan) -> None:
    """The packed rows."""
    if not plan.is_packed:
        packing_needed(plan, "No packed rows yet")
        return
    layout = plan.layout
    kit.section("Packed rows", "one colour per trajectory; hatched is padding; click a row for its tree")
    n_rows = len(layout.rows)
    first = (min(page_from_query(), -(-n_rows // ROWS)) - 1) * ROWS
    rows = layout.rows[first : first + ROWS]
    facts = step_facts(plan, np.concatenate([part.order for row in rows for part in row]))
    detail = {
        uid: f"step {fact['step_index']} of {fact['trajectory_uid']}, advantage "
        + ("none" if fact["advantage"] is None else f"{fact['advantage']:+.2f}")
        for uid, fact in facts.items()
    }
    clicked = components.packed_rows(
        rows=rows_drawing(
            rows,
            plan.lengths,
            plan.step_uids,
            {uid: fact["trajectory_uid"] for uid, fact in facts.items()},
            detail,
            first,
        ),
        budget=layout.token_budget,
        selected=None,
        key="rows",
        height=560,
    )
    if clicked is not None:
        state.set_query(show=f"{ROW}{clicked}", node=None, tab="tree", page=None)
        st.rerun()
    pagination(n_rows, key="packed-rows", size=ROWS, noun="rows")
    n_ranks = plan.recipe.n_ranks
    ranks = int(
        st.number_input("Ranks", 1, 65536, n_ranks, width=120, help="Rows are distributed over ranks by equal work")
    )
    if ranks != n_ranks:
        replan(plan.recipe, n_ranks=ranks)
    if n_ranks > 1:
        dealt = layout.dealt
        shares = ", ".join(kit.counted(len(one), "row") for one in dealt.ranks[:8]) + (" …" if n_ranks > 8 else "")
        st.caption(
            f"Over {n_ranks} ranks: {shares}; the busiest has {dealt.imbalance:.3f} × the mean work (with attention)."
        )
    if len(layout.over_budget):
        st.caption(f":orange[{len(layout.over_budget)} steps are longer than a row and are left out.]")


def groups_tab(plan: Plan) -> None:
    """Tokens saved by sharing: by group, by step index, by agent."""
    if not plan.is_packed:
        packing_needed(plan, "No savings by group, step or agent yet")
        return
    layout = plan.layout
    names = group_names(plan)
    each = groups_per_bar(len(names))
    subtitle = "separate, and with each shared prefix once"
    kit.section(
        "Tokens by prompt group", subtitle if each == 1 else f"{subtitle}; a bar is the mean of {each} groups in a row"
    )
    kit.plot(
        group_tokens(names, layout.group_tokens, layout.group_packed),
        key="group-tokens",
        alt="Tokens per prompt group before and after sharing",
    )
    by = segmented_choice("Savings by", SAVED_BY, "by")
    rows = savings(plan, by)
    config = st.column_config
    event = st.dataframe(
        rows,
        hide_index=True,
        row_height=29,
        height=min(420, 36 + 29 * len(rows)),
        on_select="rerun",
        selection_mode="single-cell",
        key=f"by-{by}-{plan.hash[:12]}",
        column_config={
            "name": config.Column(SAVED_BY[by]),
            "trajectories": config.NumberColumn("Trajectories"),
            "steps": config.NumberColumn("Steps"),
            "tokens": config.NumberColumn("Tokens before", format="localized"),
            "packed": config.NumberColumn("Tokens after", format="localized"),
            "ratio": config.ProgressColumn("Token ratio", min_value=0, max_value=1, format="%.3f"),
            "saved": config.NumberColumn("Saved", format="localized"),
        },
    )
    st.caption(
        "A shared token counts for the first step of its row that contains it, so a prefix used in several rows "
        "counts in each of them. The sums of the columns equal the plan's totals."
    )
    cells = event["selection"]["cells"]
    if cells and by == "group":
        state.set_query(show=rows[cells[0][0]]["name"], node=None, tab="tree", page=None)
        st.rerun()


page_header("optimise")
with kit.error_boundary():
    optimise_page()
