"""One batch: what it held, what happened to it, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from core.types import View
from studio import state
from studio import widgets as w
from studio.widgets.figures import Tone
from studio.widgets.tables import mark

BATCHES, SYNC_ROWS = 300, 100
"""Batches that are drawn and listed at once; weight syncs on one page of their table."""
STATE_TONE: dict[str, Tone] = {"acked": "good", "leased": "", "released": "muted", "expired": "warn"}


def recipe_name(row: Mapping[str, Any]) -> str:
    """``name v3``, or that the recipe came with the fetch."""
    return f"{row['recipe_name']} v{row['recipe_version']}" if row["recipe_name"] else "own"


def one_batch(uid: str) -> None:
    """A batch: what it held, what happened to it, what was measured."""
    service = state.service()
    batch, made = service.pool.batches.get(uid), service.leases.plan_of(uid)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("All batches", icon=":material/arrow_back:"):
            state.goto("consume", channel=batch["channel"])
        st.html(f"{mark(batch['state'], STATE_TONE[batch['state']])} {w.uid_html(uid)} {w.escape(batch['consumer'])}")
        st.space("stretch")
        trajectories = made.trajectories["trajectory_uid"].to_pylist()
        view = state.view_to_query(View({"trajectory_uid": trajectories[:500]}))
        if st.button("Its steps", icon=":material/frame_inspect:", help="The batch's trajectories in Inspect"):
            state.goto("inspect", level="steps", **view)
        if batch["state"] == "leased" and st.button("Give back", icon=":material/undo:", help="End the lease now"):
            service.pool.batches.finish(uid, "released", detail={"by": state.author()})
            st.rerun()
    counts = made.counts
    w.figures(
        [
            w.Figure("Groups", w.count(counts["n_groups"])),
            w.Figure("Trajectories", w.count(counts["n_trajectories"])),
            w.Figure("Steps", w.count(counts["n_steps"])),
            w.Figure("Tokens", w.compact(counts["n_tokens"]), sub=f"{w.compact(counts['n_loss_tokens'])} in the loss"),
            w.Figure("Policy version", w.count(batch["policy_version"])),
            w.Figure("Recipe", recipe_name(batch)),
            w.Figure("Update", w.count(batch["update_index"])),
        ],
        dense=True,
    )
    left, right = st.columns([5, 4], gap="medium")
    config = st.column_config
    with left:
        w.section("Trajectories", "as they were handed out")
        event = st.dataframe(
            made.trajectories.select(
                ["prompt_uid", "trajectory_uid", "n_steps", "n_tokens", "reward", "advantage", "policy_version_min"]
            ).to_pylist(),
            hide_index=True,
            height=min(460, 38 + 29 * len(made.trajectories)),
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
        w.section("Life")
        w.facts([(event["event"], lived(event)) for event in batch["events"]])
        measured = service.pool.batches.metrics(uid)
        if measured:
            w.section("Measured")
            w.facts([(row["name"], w.number(row["value"])) for row in measured])
        per_step = service.pool.batches.metrics(uid, of_steps=True)
        if per_step:
            w.section("Measured by step", f"{w.count(len(per_step))} values")
            st.dataframe(
                [{"step": row["step_uid"], "metric": row["name"], "value": row["value"]} for row in per_step],
                hide_index=True,
                height=240,
            )
        with st.expander("Recipe", icon=":material/tune:"):
            st.json(made.recipe.to_json(), expanded=1)


def lived(event: Mapping[str, Any]) -> str:
    """When something happened to a batch, and what was said of it."""
    detail = ", ".join(f"{name} {value}" for name, value in (event["detail"] or {}).items() if name != "expires_at")
    return f"{w.ago(event['created_at'], state.service().clock())}{', ' + detail if detail else ''}"
