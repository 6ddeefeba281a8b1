"""A prompt group: its trajectories side by side, with rewards, advantages and first differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.pool import Pool
from core.report.decisions import GroupSummary, summarise
from core.types import View
from studio import components, kit, state
from studio.kit import data_tables
from studio.kit.filters import apply_view
from studio.widgets.inspect.divergence import find_divergence
from studio.widgets.inspect.group_summary import show_summary
from studio.widgets.labels.reward_reason import headline as reward_headline
from studio.widgets.labels.reward_reason import reason_text
from studio.widgets.plans.group_credit import exclusion_reason, group_plan
from studio.widgets.steps.messages import headline

Row = Mapping[str, Any]


def group_page(uid: str) -> None:
    """Draw the group: figures, its trajectories as rows of steps, and links."""
    pool = state.service().pool
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="crumbs"):
        if st.button("All groups", icon=":material/arrow_back:", key="back", type="tertiary"):
            state.set_query(group=None, level="groups")
            st.rerun()
        group = pool.groups.get(uid)
        st.html(f"<code title='{kit.escape(uid)}'>{kit.escape(uid)}</code>", width="content")
        st.space("stretch")
        if st.button("Its trajectories", icon=":material/table_rows:", type="tertiary", key="group-rows"):
            state.set_query(group=None, level=None)
            apply_view(View({"prompt_uid": [uid]}))
        if st.button("Review", icon=":material/rate_review:", type="tertiary", key="group-review"):
            state.goto("curate", tab="review", level="group", item=uid)
    members = sorted(group["trajectories"], key=lambda one: (one["reward"] is None, -(one["reward"] or 0.0)))
    figures(group, members)
    show_summary(summary_of(uid, members))
    channel = str(group["channel"])
    plan, name = group_plan(uid, channel)
    chosen = {row["trajectory_uid"]: row for row in plan.trajectories.to_pylist()}
    steps = steps_of(pool, [member["trajectory_uid"] for member in members])
    requested = state.query("reference")
    uids = [member["trajectory_uid"] for member in members]
    reference = requested if requested is not None and requested in uids else uids[0]
    advantages = {one: row["advantage"] for one, row in chosen.items()}
    clicked = components.siblings(
        rows=sibling_rows(pool, members, steps, reference, advantages),
        key=components.mount_key("siblings", uid),
        height=520,
    )
    missing = [one for one in uids if one not in chosen]
    why = f" {len(missing)} not in it: {exclusion_reason(plan, steps[missing[0]][0]['step_uid'])}." if missing else ""
    st.html(kit.caption_html(f"Advantages by {name}.{why}"))
    handle_click(clicked, reference)


def summary_of(uid: str, members: Sequence[Row]) -> GroupSummary:
    """The group's task and decisions, kept until the pool is written to."""
    service = state.service()
    named = [{name: one[name] for name in ("trajectory_uid", "reward")} for one in members]
    return _summary(f"{service.settings.pool_path} {service.port}", service.pool.n_writes, uid, named)


@st.cache_resource(max_entries=8, show_spinner=False)
def _summary(opened: str, n_writes: int, uid: str, _members: Sequence[Row]) -> GroupSummary:
    return summarise(state.service().pool, _members)


def handle_click(clicked: Mapping[str, str] | None, reference: str) -> None:
    """Open what was clicked in the rows."""
    if clicked is None:
        return
    what, uid = clicked["what"], clicked["uid"]
    if what == "reference":
        state.set_query(reference=uid)
    elif what == "compare":
        state.set_query(compare=[reference, uid], place=None)
    elif what == "trajectory":
        state.set_query(trajectory=uid, step=None)
    else:
        owner = state.service().pool.steps.get(uid)["trajectory_uid"]
        state.set_query(trajectory=owner, step=uid)
    st.rerun()


def figures(group: Row, members: Sequence[Row]) -> None:
    """Figures of the group."""
    versions = [
        m[name] for m in members for name in ("policy_version_min", "policy_version_max") if m[name] is not None
    ]
    rate = group["success_rate"]
    flat = group["zero_variance"]
    kit.figures(
        [
            kit.Figure("Trajectories", kit.count(len(members)), sub=f"{kit.count(group['n_complete'])} complete"),
            kit.Figure("Success", kit.percent(rate), help="Share of the scored trajectories with a reward above 0.5"),
            kit.Figure("Difficulty", kit.number(None if rate is None else 1 - rate), help="1 - success rate"),
            kit.Figure("Reward", kit.number(group["reward_mean"]), sub=f"± {kit.number(group['reward_std'])}"),
            kit.Figure("Lowest, highest", f"{kit.number(group['reward_min'])}, {kit.number(group['reward_max'])}"),
            kit.Figure(
                "Variance",
                "none" if flat else kit.DASH if group["n_scored"] < 2 else "some",
                tone="warn" if flat else "",
                help="All rewards are equal: group-relative advantages are 0",
            ),
            kit.Figure(
                "Policy", data_tables.version_span(min(versions, default=None), max(versions, default=None)) or kit.DASH
            ),
            kit.Figure("Tokens", kit.compact(group["n_tokens"]), sub=f"{kit.count(group['n_steps'])} steps"),
        ],
        dense=True,
    )


def steps_of(pool: Pool, trajectory_uids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Main steps of each trajectory in order (all steps where none is main)."""
    rows = pool.steps.page(View({"trajectory_uid": list(trajectory_uids)}), order="step_index", limit=None).to_pylist()
    by_trajectory: dict[str, list[dict[str, Any]]] = {uid: [] for uid in trajectory_uids}
    for row in rows:
        by_trajectory[row["trajectory_uid"]].append(row)
    return {
        uid: [row for row in trajectory_rows if row["call_kind"] == "main"] or trajectory_rows
        for uid, trajectory_rows in by_trajectory.items()
    }


def sibling_rows(
    pool: Pool,
    members: Sequence[Row],
    steps: Mapping[str, Sequence[Row]],
    reference: str,
    advantages: Mapping[str, float | None],
    selected: str | None = None,
) -> list[dict[str, Any]]:
    """Rows for ``components.siblings``, one per trajectory."""
    rows = []
    now = state.service().clock()
    reasons = pool.rewards.reasons([member["trajectory_uid"] for member in members])
    for member in members:
        uid = member["trajectory_uid"]
        parting = None if uid == reference else find_divergence(pool.steps, steps[reference], steps[uid])
        rows.append(
            {
                "uid": uid,
                "name": kit.short_uid(uid, 24),
                "reward": member["reward"],
                "why": reward_headline(reasons[uid]) if uid in reasons else "",
                "reason": reason_text(reasons[uid], now) if uid in reasons else "",
                "advantage": advantages.get(uid),
                "quality": member["quality"],
                "complete": bool(member["complete"]),
                "reference": uid == reference,
                "parts": None if parting is None else parting.place,
                "token": None if parting is None else parting.token,
                "cells": [step_cell(step, selected) for step in steps[uid]],
            }
        )
    return rows


def step_cell(step: Row, selected: str | None) -> dict[str, Any]:
    """One step as a cell of its row."""
    return {
        "uid": step["step_uid"],
        "index": step["step_index"],
        "what": headline(step),
        "n_tokens": int(step["n_response_tokens"] or 0),
        "reward": step["reward"],
        "selected": step["step_uid"] == selected,
    }
