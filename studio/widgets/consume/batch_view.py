"""Display of one batch: its trajectories, its events, its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from core.types import View
from studio import kit, state
from studio.kit.html_tables import dot_label
from studio.widgets.plans.batches import STATE_TONE, recipe_name

BATCHES, SYNC_ROWS = 300, 100
"""Batches drawn and listed at once; weight syncs per page of their table."""


def one_batch(uid: str) -> None:
    """Draw a batch: trajectories, events, metrics, recipe."""
    service = state.service()
    batch, plan = service.pool.batches.get(uid), service.leases.plan_of(uid)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("All batches", icon=":material/arrow_back:"):
            state.goto("consume", channel=batch["channel"])
        state_label = dot_label(batch["state"], STATE_TONE[batch["state"]])
        st.html(f"{state_label} {kit.uid_html(uid)} {kit.escape(batch['consumer'])}")
        st.space("stretch")
        trajectories = plan.trajectories["trajectory_uid"].to_pylist()
        view = state.view_to_query(View({"trajectory_uid": trajectories[:500]}))
        if st.button("Show steps", icon=":material/frame_inspect:", help="Open the steps of this batch in Inspect"):
            state.goto("inspect", level="steps", **view)
        if batch["state"] == "leased" and st.button(
            "Release", icon=":material/undo:", help="End the lease now; the groups can be fetched again"
        ):
            service.pool.batches.finish(uid, "released", detail={"by": state.author()})
            st.rerun()
    counts = plan.counts
    kit.figures(
        [
            kit.Figure("Groups", kit.count(counts["n_groups"])),
            kit.Figure("Trajectories", kit.count(counts["n_trajectories"])),
            kit.Figure("Steps", kit.count(counts["n_steps"])),
            kit.Figure(
                "Tokens", kit.compact(counts["n_tokens"]), sub=f"{kit.compact(counts['n_loss_tokens'])} in the loss"
            ),
            kit.Figure("Policy version", kit.count(batch["policy_version"])),
            kit.Figure("Recipe", recipe_name(batch)),
            kit.Figure("Update", kit.count(batch["update_index"])),
        ],
        dense=True,
    )
    left, right = st.columns([5, 4], gap="medium")
    config = st.column_config
    with left:
        kit.section("Trajectories", "as they were leased")
        event = st.dataframe(
            plan.trajectories.select(
                ["prompt_uid", "trajectory_uid", "n_steps", "n_tokens", "reward", "advantage", "policy_version_min"]
            ).to_pylist(),
            hide_index=True,
            height=min(460, 38 + 29 * len(plan.trajectories)),
            row_height=29,
            on_select="rerun",
            selection_mode="single-cell",
            key=f"held-{uid}",
            column_config={
                "prompt_uid": config.TextColumn("Prompt group"),
                "trajectory_uid": config.TextColumn("Trajectory"),
                "n_steps": config.NumberColumn("Steps", width=56),
                "n_tokens": config.NumberColumn("Tokens", width=72, format="localized"),
                "reward": config.NumberColumn("Reward", width=66, format="%.3g"),
                "advantage": config.NumberColumn("Advantage", width=80, format="%+.3f"),
                "policy_version_min": config.NumberColumn("Policy", width=56),
            },
        )
        cells = event["selection"]["cells"]
        if cells:
            state.goto("inspect", trajectory=trajectories[cells[0][0]])
    with right:
        kit.section("Timeline")
        kit.facts([(event["event"], event_text(event)) for event in batch["events"]])
        measured = service.pool.batches.metrics(uid)
        if measured:
            kit.section("Trainer metrics")
            kit.facts([(row["name"], kit.number(row["value"])) for row in measured])
        per_step = service.pool.batches.metrics(uid, of_steps=True)
        if per_step:
            kit.section("Trainer metrics by step", f"{kit.count(len(per_step))} values")
            st.dataframe(
                [{"step": row["step_uid"], "metric": row["name"], "value": row["value"]} for row in per_step],
                hide_index=True,
                height=240,
            )
        with st.expander("Recipe", icon=":material/tune:"):
            st.json(plan.recipe.to_json(), expanded=1)


def event_text(event: Mapping[str, Any]) -> str:
    """The time of an event of a batch, and its details."""
    detail = ", ".join(f"{name} {value}" for name, value in (event["detail"] or {}).items() if name != "expires_at")
    return f"{kit.ago(event['created_at'], state.service().clock())}{', ' + detail if detail else ''}"
