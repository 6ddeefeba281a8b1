"""Optimise: the prefix trees, packed rows and attention masks of the plan, exactly as it is exported."""

from __future__ import annotations

import streamlit as st

from core.batch.plan import Plan
from core.batch.recipe import Recipe, parse_recipe
from core.tree.build import PackedTree, build
from core.tree.nodes import tree_nodes
from core.tree.ranks import CostModel
from core.tree.sequences import Sequences
from studio import components, state
from studio import widgets as w
from studio.charts.mask import HEATMAP_TOKENS, mask_heatmap, mask_nodes
from studio.charts.plan import group_tokens
from studio.charts.tree import member_steps, rows_drawing, tree_drawing
from studio.widgets.choice import choose
from studio.widgets.filters import active_filters
from studio.widgets.planning import current_plan, link_params, recipe_to_query, safe_recipe
from studio.widgets.savings import savings
from studio.widgets.treeview import (
    branch_points,
    drift_by_node,
    drift_list,
    drifts,
    node_panel,
    owner_line,
    step_facts,
    texts_of,
)

TABS = {"tree": "Prefix tree", "mask": "Attention mask", "rows": "Packed rows", "groups": "Savings"}
LAYER = CostModel()
BUDGETS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ROW = "row:"
SAVED_BY = {"group": "Prompt group", "step": "Step of the trajectory", "agent": "Agent"}


def optimise_page() -> None:
    """Statistics of the plan, then its trees, rows or masks."""
    if state.service().pool.stats()["n_steps"] == 0:
        w.empty_state("No tokens yet", "Load the demo data or capture some calls; trees follow.", demo=True)
        return
    view = state.view_from_query()
    recipe = safe_recipe()
    active_filters(view, key="optimise")
    with st.spinner("Planning and packing…", show_time=True):
        made = current_plan(view, recipe)
        statistics(made)
    if len(made.steps) == 0:
        reason = max(made.excluded, key=lambda item: item.n_steps, default=None)
        text = "No step matches view and channel." if reason is None else f"{reason.label}: {reason.n_steps} steps."
        w.empty_state("The plan is empty", text, icon="account_tree")
        if st.button("Open the recipe", icon=":material/inventory_2:"):
            state.goto("batch", **link_params(view, recipe))
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        tab = choose("Drawing", TABS, "tab")
        shown = picker(made) if tab in ("tree", "mask") else ""
        st.space("stretch")
        budget_slider(recipe)
        if st.button("Recipe", icon=":material/inventory_2:", help="Change what is planned"):
            state.goto("batch", **link_params(view, recipe))
    with w.error_boundary():
        if tab in ("tree", "mask"):
            {"tree": tree_tab, "mask": mask_tab}[tab](made, shown)
        else:
            {"rows": rows_tab, "groups": groups_tab}[tab](made)


def budget_slider(recipe: Recipe) -> None:
    """The token budget of a packed row; the plan is made again with it."""
    options = sorted({*BUDGETS, recipe.token_budget})
    chosen = st.select_slider(
        "Token budget of a row", options, recipe.token_budget, format_func=lambda n: f"{n:,}", width=250
    )
    if chosen != recipe.token_budget:
        replan(recipe, token_budget=chosen)


def replan(recipe: Recipe, **changed: int) -> None:
    """The same plan with other settings, which the URL keeps."""
    wanted = parse_recipe({**recipe.model_dump(mode="json"), **changed})
    state.set_query(recipe=recipe_to_query(wanted), show=None, node=None)
    st.rerun()


def statistics(made: Plan) -> None:
    """Tokens and attention before and after sharing."""
    packed = made.layout.to_json()
    tokens, once = packed["n_tokens"], packed["n_packed_tokens"]
    separate, pairs = packed["attention_pairs_separate"], packed["attention_pairs"]
    capacity = packed["n_rows"] * packed["token_budget"]
    w.figures(
        [
            w.Figure("Steps", w.count(len(made.steps)), sub=f"{w.count(made.n_groups)} groups", help="step"),
            w.Figure("Tokens before", w.compact(tokens), help="Prompt and response of every step, separately"),
            w.Figure("Tokens after", w.compact(once), sub=f"{w.compact(tokens - once)} saved", tone="good"),
            w.Figure("Token ratio", w.number(packed["token_ratio"]), help="token ratio"),
            w.Figure(
                "Attention pairs",
                w.compact(pairs),
                sub=f"{w.percent(pairs, separate)} of {w.compact(separate)}",
                help="Visible (query, key) pairs, packed and separate: the attention work",
            ),
            w.Figure(
                "Attention FLOPs",
                w.compact(flops_of(0, pairs)),
                sub=f"from {w.compact(flops_of(0, separate))} a layer",
                help="Forward and backward of one layer of width 4096: 12 x 4096 per visible pair (PaLM, appendix B)",
            ),
            w.Figure(
                "Speed-up",
                "—" if not tokens else f"≤ {flops_of(tokens, separate) / flops_of(once, pairs):.2f} ×",
                sub="of an update",
                tone="good",
                help="Bound on the training step's speed-up: FLOPs of separate sequences over the packed rows', "
                "weights (6 per parameter and token, Kaplan et al.) and attention, of a layer of width 4096",
            ),
            w.Figure("Rows", w.count(packed["n_rows"]), sub=f"of {w.count(packed['token_budget'])} tokens"),
            w.Figure(
                "Padding", w.percent(packed["n_padding"], capacity), sub=f"{w.compact(packed['n_padding'])} tokens"
            ),
        ],
        dense=True,
    )


def flops_of(tokens: int, pairs: int) -> float:
    """Training FLOPs of one layer (``CostModel``'s default), for these tokens and visible pairs."""
    return LAYER.training_flops(tokens, pairs)


def picker(made: Plan) -> str:
    """Which tree is on the screen: one prompt group's, or one packed row's. The choice stands in the URL."""
    groups = {group.prompt_uid: len(group.trajectories) for group in made.groups}
    titles = {uid: f"Group {uid} · {n} trajectories" for uid, n in groups.items()}
    row_tokens = made.layout.row_tokens.tolist()
    titles |= {f"{ROW}{index}": f"Packed row {index} · {n:,} tokens" for index, n in enumerate(row_tokens)}
    asked = state.query("show")
    standing = asked if asked in titles else next(iter(titles))
    chosen = st.selectbox(
        "Show",
        list(titles),
        index=list(titles).index(standing),
        format_func=titles.__getitem__,
        width=290,
        label_visibility="collapsed",
    )
    if chosen != standing:
        state.set_query(show=chosen, node=None)
        st.rerun()
    return chosen


def tree_of(made: Plan, shown: str) -> tuple[PackedTree, Sequences]:
    """The arrays of what the picker says: a row as it is packed, or a group's steps as one tree."""
    pool = state.service().pool
    members = {group.prompt_uid: group.trajectories for group in made.groups}
    if shown in members:
        sequences = pool.sequences([uid for one in members[shown] for uid in one.step_uids])
        return build(sequences), sequences
    return made.layout.row(pool, int(shown.removeprefix(ROW)))


def tree_tab(made: Plan, shown: str) -> None:
    """The tree, and beside it what the clicked node holds."""
    tree, sequences = tree_of(made, shown)
    nodes = tree_nodes(tree)
    texts = texts_of(sequences)
    facts = step_facts(made)
    drifted = drifts(tree, nodes, sequences, facts)
    drawing = tree_drawing(tree, nodes, sequences, facts, texts.decode, drift_by_node(drifted))
    asked = state.query("node")
    node = int(asked) if asked and asked.isdigit() and int(asked) < len(nodes) else None
    left, right = st.columns([7, 3], gap="medium")
    with left:
        clicked = components.tree_canvas(
            uid=f"{made.hash[:12]}-{shown}",
            nodes=drawing.nodes,
            labels=drawing.labels,
            modes=drawing.modes,
            n_lanes=drawing.n_lanes,
            n_sequences=drawing.n_sequences,
            n_original=drawing.n_original,
            n_packed=drawing.n_packed,
            selected=node,
            height=500,
            key="tree",
        )
        if clicked is not None and clicked != node:
            state.set_query(node=clicked)
            st.rerun()
    with right:
        if node is None:
            w.section("Node", "click one in the tree")
            branch_points(tree, nodes, texts)
            drift_list(drifted, facts)
        else:
            node_panel(tree, nodes, sequences, node, texts, facts)


def mask_tab(made: Plan, shown: str) -> None:
    """The attention mask as blocks on canvas, and as a plotly heat map beside it."""
    tree, sequences = tree_of(made, shown)
    nodes = tree_nodes(tree)
    texts = texts_of(sequences)
    facts = step_facts(made)
    order = member_steps(tree, nodes, sequences)
    left, right = st.columns([6.4, 3.6], gap="medium")
    with left:
        components.mask_canvas(
            uid=f"{made.hash[:12]}-{shown}",
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
        w.section("How to read it", "key k is visible to query q iff k ≤ q < end[k]")
        lengths = sequences.lengths
        separate = int((lengths * (lengths + 1) // 2).sum())
        causal = tree.n_packed * (tree.n_packed + 1) // 2
        w.facts(
            [
                ("packed tokens", w.count(tree.n_packed)),
                (
                    "visible pairs",
                    f"{w.count(tree.attention_pairs)}, {w.percent(tree.attention_pairs, causal)} of causal",
                ),
                ("separate pairs", f"{w.count(separate)}, {w.percent(tree.attention_pairs, separate)} are left"),
                ("nodes", w.count(len(nodes))),
            ]
        )
        if tree.n_packed <= HEATMAP_TOKENS:
            st.caption("The same as a heat map, one cell per pair")
        else:
            st.caption("Share of visible pairs per cell, the whole row")
        w.plot(mask_heatmap(tree, height=380), key="mask-heat", alt="Heat map of the attention mask")


def rows_tab(made: Plan) -> None:
    """What fills each packed row."""
    facts = step_facts(made)
    detail = {
        uid: f"step {fact['step_index']} of {fact['trajectory_uid']}, advantage "
        + ("none" if fact["advantage"] is None else f"{fact['advantage']:+.2f}")
        for uid, fact in facts.items()
    }
    layout = made.layout
    w.section("Packed rows", "one colour per trajectory; hatched is padding; click a row for its tree")
    clicked = components.packed_rows(
        rows=rows_drawing(
            layout.rows[:200],
            made.lengths.tolist(),
            made.step_uids,
            {uid: fact["trajectory_uid"] for uid, fact in facts.items()},
            detail,
        ),
        budget=layout.token_budget,
        selected=None,
        key="rows",
        height=560,
    )
    if clicked is not None:
        state.set_query(show=f"{ROW}{clicked}", node=None, tab="tree")
        st.rerun()
    n_ranks = made.recipe.n_ranks
    ranks = int(st.number_input("Ranks", 1, 65536, n_ranks, width=120, help="Rows are dealt to them evenly by work"))
    if ranks != n_ranks:
        replan(made.recipe, n_ranks=ranks)
    if n_ranks > 1:
        dealt = layout.dealt
        shares = ", ".join(f"{len(one)} rows" for one in dealt.ranks[:8]) + (" …" if n_ranks > 8 else "")
        st.caption(
            f"Over {n_ranks} ranks: {shares}; the busiest has {dealt.imbalance:.3f} × the mean work, attention counted."
        )
    if len(layout.rows) > 200:
        st.caption(f"The first 200 of {len(layout.rows):,} rows.")
    if len(layout.over_budget):
        st.caption(f":orange[{len(layout.over_budget)} steps are longer than a row and lie in none.]")


def groups_tab(made: Plan) -> None:
    """What sharing saves: by group, by step of a trajectory, by agent."""
    layout = made.layout
    names = [group.prompt_uid for group in made.groups]
    w.section("Tokens by prompt group", "separate, and with each shared prefix once")
    w.plot(
        group_tokens(names, layout.group_tokens.tolist(), layout.group_packed.tolist()),
        key="group-tokens",
        alt="Tokens per prompt group before and after sharing",
    )
    by = choose("Savings by", SAVED_BY, "by")
    rows = savings(made, by)
    config = st.column_config
    event = st.dataframe(
        rows,
        hide_index=True,
        row_height=29,
        height=min(420, 36 + 29 * len(rows)),
        on_select="rerun",
        selection_mode="single-cell",
        key=f"by-{by}-{made.hash[:12]}",
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
    st.caption("A shared token counts for the first step that has it in its row; the columns' sums are the plan's.")
    cells = event["selection"]["cells"]
    if cells and by == "group":
        state.set_query(show=rows[cells[0][0]]["name"], node=None, tab="tree")
        st.rerun()


w.page_header("optimise")
with w.error_boundary():
    optimise_page()
