"""The Credit tab: distributions of reward, advantage and staleness of a plan, and rewards by prompt group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import streamlit as st

from core.batch.plan import Plan
from studio import kit
from studio.charts.plan import CELLS, MAX_DOTS, group_density, group_strip, value_histogram
from studio.kit.data_tables import page_from_query, pagination

DOT_GROUPS = 40
"""Prompt groups per page of dots."""


def credit_tab(plan: Plan) -> None:
    """Histograms of staleness, reward and advantage of the chosen trajectories."""
    if len(plan.steps) == 0:
        return
    rows = plan.trajectories
    rewards, advantages = rows["reward"].to_pylist(), rows["advantage"].to_pylist()
    left, right, third = st.columns(3, gap="medium")
    with third:
        current = staleness_version(plan)
        kit.section("Staleness", "versions behind, oldest step" + ("" if current is None else f"; now {current}"))
        oldest = rows["policy_version_min"].to_pylist()
        behind = [None if current is None or one is None else current - one for one in oldest]
        kit.plot(
            value_histogram(behind, noun="trajectories", counted=True),
            key="staleness-spread",
            alt="Histogram of staleness",
        )
    with left:
        kit.section("Reward", "of the chosen trajectories")
        kit.plot(
            value_histogram(rewards, noun="trajectories"), key="reward-spread", alt="Histogram of trajectory rewards"
        )
    with right:
        kit.section("Advantage", f"by {plan.recipe.estimator.title}")
        if plan.recipe.estimator.compute is None:
            st.caption("Supervised use: no advantage is assigned.")
        else:
            kit.plot(
                value_histogram(advantages, noun="trajectories"), key="advantage-spread", alt="Histogram of advantages"
            )
    by_group(plan)
    group = rows["group"].to_numpy()
    flat = int(np.sum(np.bincount(group, np.array(advantages, dtype=np.float64) != 0) == 0))
    if flat:
        st.caption(f"Groups whose rewards are equal: {kit.count(flat)}. Their advantages are 0.")


def by_group(plan: Plan) -> None:
    """Rewards by group: a dot per trajectory; for large plans a density, with dots page by page."""
    rows = plan.trajectories
    dots = "one dot per trajectory, colour is its advantage"
    if len(rows) <= MAX_DOTS:
        kit.section("By prompt group", dots)
        dot_strip(rows, 0)
        return
    each = -(-plan.n_groups // CELLS[0])
    many = "each prompt group" if each == 1 else f"{kit.count(each)} prompt groups in a row"
    kit.section("By prompt group", f"colour counts trajectories: {many} by reward; the groups' dots are below")
    group, rewards, advantages = (rows[name].cast("float64").to_numpy() for name in ("group", "reward", "advantage"))
    figure = group_density(group.astype(np.int64), rewards, advantages)
    kit.plot(figure, key="group-density", alt="How many trajectories have which reward, along the prompt groups")
    first = (min(page_from_query(), -(-plan.n_groups // DOT_GROUPS)) - 1) * DOT_GROUPS
    last = min(first + DOT_GROUPS, plan.n_groups)
    kit.section(f"Groups {kit.count(first)} to {kit.count(last - 1)}", dots)
    dot_strip(rows.filter(pa.array((group >= first) & (group < last))), first)
    pagination(plan.n_groups, key="dot-groups", size=DOT_GROUPS, noun="groups")


def dot_strip(rows: pa.Table, first: int) -> None:
    """Dots of these trajectories; ``first`` is the index of their first group."""
    names = ("prompt_uid", "reward", "advantage", "trajectory_uid")
    figure = group_strip(*(rows[name].to_pylist() for name in names), first=first)
    kit.plot(figure, key="group-strip", alt="Rewards of each prompt group, coloured by advantage")


def staleness_version(plan: Plan) -> int | None:
    """The policy version that staleness is counted from: the plan's, else the current one."""
    named = plan.policy_version
    return plan.reader.version_in_force(plan.recipe.channel) if named is None else named
