"""The Batch page: from recipe to plan to file. It shows the same plan that fetch and export use."""

from __future__ import annotations

import json
import shlex

import streamlit as st

from core.batch.plan import Plan
from core.batch.recipe import Recipe
from core.credit.fields import missing_fields
from core.errors import StudioError
from core.export import EXPORTERS, estimate_bytes
from core.types import View
from studio import kit, state
from studio.frame.header import page_header
from studio.kit.data_tables import page_from_query, pagination
from studio.kit.filters import active_filters, filter_panel
from studio.kit.html_tables import html_table
from studio.kit.url_choices import list_choice, segmented_choice
from studio.widgets.agents.demo import demo_actions
from studio.widgets.batch.compare import side_by_side, what_if
from studio.widgets.batch.credit import credit_tab
from studio.widgets.plans.current_plan import current_plan, plan_totals
from studio.widgets.plans.export_job import ExportJob
from studio.widgets.plans.export_preview import export_preview
from studio.widgets.plans.export_view import show_differences, show_job
from studio.widgets.plans.funnel import funnel_table
from studio.widgets.plans.recipe_editor import recipe_editor
from studio.widgets.plans.recipe_query import link_params, recipe_to_query, safe_recipe

TABS = {
    "chosen": "Chosen",
    "excluded": "Excluded",
    "credit": "Credit",
    "compare": "Estimators",
    "whatif": "What if",
    "export": "Export",
    "json": "JSON",
}
# What stands beside the plan; without it, the plan has the full width.
SIDES = {"recipe": "Recipe", "view": "View", "hidden": "Hide"}
GROUP_ROWS = 200
TRAJECTORY_ROWS = 2000
JSON_GROUPS = 20
OTHER_MESSAGES = 5


def batch_page() -> None:
    """Recipe or filters on the left, unless they are hidden; the plan on the right."""
    pool = state.service().pool
    stats = pool.stats.totals()
    if stats["n_steps"] == 0:
        kit.empty_state("Nothing to plan yet", "Load the demo data or capture some calls first.", actions=demo_actions)
        return
    if state.query("side") == "hidden":
        left = right = st.container()
    else:
        left, right = st.columns([2.3, 9], gap="medium")
    with left, kit.error_boundary():
        side = segmented_choice("Side", SIDES, "side")
        recipe = safe_recipe()
        if side == "view":
            filter_panel("batch")
        elif side == "recipe":
            saved_recipes(recipe)
            recipe_editor(recipe, list(stats["by_channel"]))
    with right, kit.error_boundary():
        view = state.view_from_query()
        active_filters(view, key="batch")
        show_plan(view, recipe)


def saved_recipes(recipe: Recipe) -> None:
    """Load or save a recipe by name."""
    pool = state.service().pool
    saved = {row["name"]: row["recipe"] for row in pool.recipes.all()}
    with st.popover("Saved recipes", icon=":material/bookmark:", width="stretch"):
        for name, fields in saved.items():
            if st.button(kit.escape_markdown(name), key=f"load-recipe-{name}", width="stretch"):
                state.set_query(recipe=json.dumps(fields, sort_keys=True, separators=(",", ":")))
                st.rerun()
        with st.form("save-recipe", border=False, clear_on_submit=True):
            name = st.text_input("Name")
            if st.form_submit_button("Save this recipe", width="stretch") and name.strip():
                pool.recipes.save(name, recipe.to_json())
                st.rerun()


def show_plan(view: View, recipe: Recipe) -> None:
    """Totals, then the chosen tab."""
    with st.spinner("Planning…", show_time=True):
        plan = current_plan(view, recipe)
        plan_totals(plan)
    if len(plan.steps) == 0:
        reason = max(plan.excluded, key=lambda item: item.n_steps, default=None)
        text = (
            f"No step of channel {recipe.channel} matches the view: choose another channel, or remove a filter."
            if reason is None
            else f"{reason.label}: {kit.count(reason.n_steps)} steps."
        )
        kit.empty_state("The plan is empty", text, icon="filter_alt_off")
    with st.container(horizontal=True, vertical_alignment="center"):
        tab = segmented_choice("Tab", TABS, "tab")
        st.space("stretch")
        st.caption(f"`{plan.uid[:13]}`" + ("" if plan.policy_version is None else f" · policy {plan.policy_version}"))
        if st.button("Packing", icon=":material/account_tree:", help="Trees, rows and mask of this plan"):
            state.goto("optimise", **link_params(view, recipe))
    DRAW[tab](plan)


def chosen_tab(plan: Plan) -> None:
    """The plan's groups and trajectories (of all groups or one); for an empty plan, the exclusions."""
    if len(plan.steps) == 0:
        excluded_tab(plan)
        return
    first = (min(page_from_query(), -(-plan.n_groups // GROUP_ROWS)) - 1) * GROUP_ROWS
    shown_groups = plan.first_groups(first, GROUP_ROWS)
    groups = [
        {
            "prompt_uid": kit.short_uid(group.prompt_uid, 13),
            "trajectories": len(group.trajectories),
            "steps": sum(len(one.step_uids) for one in group.trajectories),
            "tokens": sum(one.n_tokens for one in group.trajectories),
            "reward": mean([one.reward for one in group.trajectories]),
            "rewards": [one.reward for one in group.trajectories if one.reward is not None],
        }
        for group in shown_groups
    ]
    left, right = st.columns([4.5, 5], gap="small")
    config = st.column_config
    with left:
        kit.section("Prompt groups", f"{kit.count(plan.n_groups)} in plan order")
        event = st.dataframe(
            groups,
            hide_index=True,
            height=min(560, 38 + 29 * len(groups)),
            row_height=29,
            placeholder="",
            on_select="rerun",
            selection_mode="single-cell",
            key=f"groups-{plan.hash[:12]}-{first}",
            column_config={
                "prompt_uid": config.TextColumn("Prompt group", width=107),
                "trajectories": config.NumberColumn("Traj.", width=38, help="Trajectories"),
                "steps": config.NumberColumn("Steps", width=46),
                "tokens": config.NumberColumn("Tokens", width=53, format="compact"),
                "reward": config.NumberColumn("Mean", width=46, format="%.3g"),
                "rewards": config.BarChartColumn("Rewards", width=60),
            },
        )
        if plan.n_groups > GROUP_ROWS:
            pagination(plan.n_groups, key="plan-groups", size=GROUP_ROWS, noun="groups")
    cells = event["selection"]["cells"]
    only = shown_groups[cells[0][0]].prompt_uid if cells else None
    matching = [
        (group, one) for group in shown_groups if only is None or group.prompt_uid == only for one in group.trajectories
    ]
    shown = matching[:TRAJECTORY_ROWS]
    if only:
        subtitle = f"of {only}"
    else:
        of = "all groups" if len(shown_groups) == plan.n_groups else f"these {kit.count(len(shown_groups))} groups"
        cut = f"first {kit.count(len(shown))} of {kit.count(len(matching))} " if len(shown) < len(matching) else ""
        subtitle = f"{cut}of {of}; click a group to narrow, a row to open"
    with right:
        kit.section("Trajectories", subtitle)
        opened = st.dataframe(
            [
                {
                    "trajectory_uid": kit.short_uid(one.trajectory_uid, 12),
                    "steps": len(one.step_uids),
                    "tokens": one.n_tokens,
                    "loss": one.n_response_tokens,
                    "reward": one.reward,
                    "advantage": one.advantage,
                    "policy": one.policy_version_min,
                }
                for _, one in shown
            ],
            hide_index=True,
            height=min(560, 38 + 29 * max(len(shown), 1)),
            row_height=29,
            placeholder="",
            on_select="rerun",
            selection_mode="single-cell",
            key=f"trajectories-{plan.hash[:12]}-{first}-{only}",
            # What fits a page that is 1280 pixels wide; the table's own menu shows the policy version, too.
            column_order=("trajectory_uid", "steps", "tokens", "loss", "reward", "advantage"),
            column_config={
                "trajectory_uid": config.TextColumn("Trajectory", width=106),
                "steps": config.NumberColumn("Steps", width=46),
                "tokens": config.NumberColumn("Tokens", width=56, format="localized"),
                "loss": config.NumberColumn("In loss", width=52, format="localized"),
                "reward": config.NumberColumn("Reward", width=54, format="%.3g"),
                "advantage": config.NumberColumn("Advantage", width=74, format="%+.3f"),
                "policy": config.NumberColumn("Policy", width=50),
            },
        )
    if opened["selection"]["cells"]:
        state.goto("inspect", trajectory=shown[opened["selection"]["cells"][0][0]][1].trajectory_uid)


def mean(values: list[float | None]) -> float | None:
    """Mean of the known values; None when none is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def excluded_tab(plan: Plan) -> None:
    """Missing inputs, and the funnel of exclusions."""
    missing_inputs(plan)
    funnel_table(plan)


def missing_inputs(plan: Plan) -> None:
    """The fields that the algorithm needs and steps lack, each once, with how to give it."""
    if not plan.lacks:
        return
    kit.section("Missing inputs", f"what {plan.recipe.estimator.title} needs and the steps do not have")
    fields, others = missing_fields(plan.lacks)
    rows = [
        (
            f"<b>{kit.escape(one.description.partition(':')[0])}</b>{kit.escape(one.description.partition(':')[2])}",
            kit.escape(one.how),
            kit.escape(one.example),
        )
        for one in fields
    ]
    if rows:
        html_table(["Missing", "How to give it", "First"], rows)
    for text in others[:OTHER_MESSAGES]:
        st.html(f'<div class="cs-note">{kit.escape(text)}</div>')
    if len(others) > OTHER_MESSAGES:
        st.caption(f"and {kit.count(len(others) - OTHER_MESSAGES)} more of the same kind")


def export_tab(plan: Plan) -> None:
    """Write the plan to a file; show what was written and how to load it."""
    service = state.service()
    left, right = st.columns([3, 5], gap="medium")
    job: ExportJob | None = st.session_state.get("export-job")
    with left:
        name = list_choice("Format", {key: one.title for key, one in EXPORTERS.items()}, "format")
        exporter = EXPORTERS[name]
        st.caption(exporter.description)
        options = {
            key: st.selectbox(key, values, key=f"option-{name}-{key}") for key, values in exporter.choices.items()
        }
        options |= {
            key: st.text_input(key, value, key=f"option-{name}-{key}") for key, value in exporter.values.items()
        }
        if len(plan.steps):
            show_differences(one.to_json() for one in exporter.deviations(plan, options))
        size = size_estimate(plan, name, options)
        st.caption(f"{kit.count(len(plan.steps))} steps, {kit.compact(int(plan.lengths.sum()))} tokens to write{size}")
        busy = job is not None and job.running
        if st.button(
            "Export", type="primary", icon=":material/save:", disabled=busy or not len(plan.steps), width="stretch"
        ):
            out = service.settings.export_dir
            st.session_state["export-job"] = ExportJob(plan, service.pool, name, out, options, service.clock)
            st.rerun()
    with right:
        if job is None:
            st.caption("No file yet. The export writes the file and a manifest with its hash, its counts and the plan.")
        else:
            if job.result is not None and job.plan.hash != plan.hash:
                st.caption(":orange[This file has an earlier plan. Export again for the plan above.]")
            show_job(job)
        if len(plan.steps):
            export_preview(plan, name, options)


def size_estimate(plan: Plan, name: str, options: dict[str, str]) -> str:
    """The estimated size of the file; empty if it can't be estimated."""
    try:
        n_bytes = estimate_bytes(EXPORTERS[name], plan, state.service().pool, options)
    except StudioError as error:
        return f". {error.message}" + (f": {error.hint}" if error.hint else "")
    return "" if n_bytes is None else f", about {kit.bytes_text(n_bytes)}"


def as_json(plan: Plan) -> None:
    """The response of ``POST /api/v1/plans`` for this view and recipe."""
    body = {"view": plan.view_json(), "recipe": json.loads(recipe_to_query(plan.recipe) or "{}")}
    st.caption("The same plan over HTTP:")
    address = f"{state.service().base_url}/api/v1/plans"
    st.code(
        f"curl -s {address} -H 'content-type: application/json' \\\n  -d {shlex.quote(json.dumps(body))}",
        language="bash",
    )
    if plan.n_groups <= JSON_GROUPS:
        st.json(plan.to_json(), expanded=1)
        return
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.caption(
            f"Below, groups (and pairs) are the first {JSON_GROUPS} of {kit.count(plan.n_groups)}; "
            "the request and the file contain all."
        )
        st.download_button(
            "Download the full plan",
            lambda: json.dumps(plan.to_json(), default=str),
            file_name=f"{plan.uid}.json",
            mime="application/json",
            icon=":material/download:",
        )
    st.json(plan.to_json(JSON_GROUPS), expanded=1)


DRAW = {
    "chosen": chosen_tab,
    "excluded": excluded_tab,
    "credit": credit_tab,
    "compare": side_by_side,
    "whatif": what_if,
    "export": export_tab,
    "json": as_json,
}

page_header("batch")
batch_page()
