"""One item of the review queue: what is read of it, and how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from core.pool import Pool
from core.types import View
from studio import components, kit, state
from studio.widgets.steps.continuation import continuation
from studio.widgets.steps.messages import answer, cards, delta, headline

IN_SIGHT = 8
"""Of a trajectory's conversation so many last messages are open, the earlier ones folded."""


@dataclass(frozen=True, slots=True)
class Item:
    """A step, trajectory or group as the queue shows it.

    Attributes:
        level, uid: what it is.
        trajectory_uid: of a step or trajectory; of a group the first member's.
        members: trajectories of a group, else empty.
        facts: figures above it.
        entries: cards for ``components.messages_view``, per column with its title and trajectory.
    """

    level: str
    uid: str
    trajectory_uid: str
    members: tuple[str, ...]
    facts: list[kit.Figure]
    columns: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)


def load_item(pool: Pool, level: str, uid: str) -> Item:
    """Read an item. NotFound when there is none."""
    return {"step": _step, "trajectory": _trajectory, "group": _group}[level](pool, uid)


def draw_item(item: Item) -> None:
    """Figures, a way to Inspect, and the conversation; a group's members side by side."""
    kit.figures(item.facts, dense=True)
    link = {"trajectory": item.uid} if item.level == "trajectory" else {"step": item.uid}
    if item.level == "group":
        link = {"group": item.uid}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(f"<code>{kit.escape(item.uid)}</code>", width="content")
        if st.button("Open in Inspect", icon=":material/open_in_new:", type="tertiary", key="review-open"):
            state.goto("inspect", **link)
    if item.level != "group":
        components.messages_view(uid=item.uid, entries=item.columns[0][1], key="review-messages")
        return
    for start in range(0, len(item.columns), 2):
        for place, column in enumerate(st.columns(2, gap="small")):
            if start + place < len(item.columns):
                title, entries = item.columns[start + place]
                with column:
                    st.html(f'<div class="cs-said">{title}</div>')
                    components.messages_view(uid=f"{item.uid}-{title}", entries=entries, key=f"review-{start + place}")


def conversation(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The whole conversation up to and with a step's answer, its beginning folded."""
    messages = list(step.get("messages") or [])
    early, late = messages[:-IN_SIGHT], messages[-IN_SIGHT:]
    entries: list[dict[str, Any]] = []
    if early:
        entries.append({"kind": "folded", "n": len(early), "label": "before", "entries": cards(early)})
    entries += cards(late, before=early)
    return entries + answer(step)


def _answering(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """The trajectory's last main step: its context holds the most of it."""
    main = [step["step_uid"] for step in steps if step.get("call_kind") == "main"]
    uids: list[str] = main or [step["step_uid"] for step in steps]
    return uids[-1] if uids else None


def _step(pool: Pool, uid: str) -> Item:
    step = pool.steps.get(uid)
    parent = pool.steps.get(step["parent_step_uid"]) if step.get("parent_step_uid") else None
    facts = [
        kit.Figure("Step", kit.count(step["step_index"]), sub=headline(step)),
        kit.Figure("Reward", kit.number(step["reward"]), sub=f"trajectory {kit.number(step['trajectory_reward'])}"),
        kit.Figure(
            "Tokens", kit.compact(step["n_response_tokens"]), sub=f"prompt {kit.compact(step['n_prompt_tokens'])}"
        ),
        kit.Figure("Finish", str(step.get("finish_reason") or kit.DASH), sub=str(step.get("status") or "")),
    ]
    return Item(
        "step",
        uid,
        step["trajectory_uid"],
        (),
        facts,
        [("", delta(step, parent=parent, later=continuation(pool, step)))],
    )


def _trajectory(pool: Pool, uid: str) -> Item:
    whole = pool.trajectories.get(uid, tokens=False)
    last = _answering(whole["steps"])
    facts = [
        kit.Figure("Steps", kit.count(whole["n_steps"]), sub="complete" if whole["complete"] else "open"),
        kit.Figure("Reward", kit.number(whole["reward"]), sub=str(whole.get("outcome") or "")),
        kit.Figure("Tokens, once", kit.compact(whole["n_unique_tokens"])),
        kit.Figure("Agent", str(whole.get("agent") or kit.DASH), sub=str(whole.get("prompt_uid") or "")),
    ]
    entries = conversation(pool.steps.get(last)) if last else []
    return Item("trajectory", uid, uid, (), facts, [("", entries)])


def _group(pool: Pool, uid: str) -> Item:
    row = pool.groups.get(uid)
    members = row["trajectories"]
    columns = []
    for member in members:
        steps = pool.steps.page(
            View({"trajectory_uid": member["trajectory_uid"]}), order="step_index", limit=None
        ).to_pylist()
        last = _answering(steps)
        entries = answer(pool.steps.get(last)) if last else []
        reward = f"reward <b>{kit.number(member['reward'])}</b>"
        title = f"{kit.escape(member['trajectory_uid'])} · {reward} · {len(steps)} steps"
        columns.append((title, entries))
    facts = [
        kit.Figure("Trajectories", kit.count(row["n_trajectories"]), sub=f"{kit.count(row['n_complete'])} complete"),
        kit.Figure("Success", kit.percent(row["success_rate"]), sub=f"{kit.count(row['n_scored'])} scored"),
        kit.Figure("Reward", kit.number(row["reward_mean"]), sub=f"± {kit.number(row['reward_std'])}"),
        kit.Figure("Task", str(row.get("prompt_preview") or kit.DASH)[:60]),
    ]
    return Item("group", uid, members[0]["trajectory_uid"], tuple(m["trajectory_uid"] for m in members), facts, columns)
