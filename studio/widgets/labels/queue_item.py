"""One item of the review queue: loaded from the pool, and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from core.pool import Pool
from core.types import View
from studio import components, kit, state
from studio.widgets.labels.reward_reason import headline as reward_headline
from studio.widgets.labels.reward_reason import reasons_of, show_reward_reason
from studio.widgets.steps.continuation import continuation
from studio.widgets.steps.messages import answer, cards, delta, headline

OPEN_MESSAGES = 8
"""Number of messages at the end of a conversation that are open; earlier ones are folded."""


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """A step, trajectory or group in the queue.

    Attributes:
        level, uid: identity of the item.
        trajectory_uid: of a step or trajectory; for a group that of its first member.
        members: trajectories of a group, else empty.
        facts: figures shown above it.
        columns: title, and cards for ``components.messages_view``, of each column.
        task: the beginning of the task's text.
    """

    level: str
    uid: str
    trajectory_uid: str
    members: tuple[str, ...]
    facts: list[kit.Figure]
    columns: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    task: str = ""


def load_item(pool: Pool, level: str, uid: str) -> ReviewItem:
    """Load an item. NotFound when it does not exist."""
    return {"step": _step, "trajectory": _trajectory, "group": _group}[level](pool, uid)


def draw_item(item: ReviewItem) -> None:
    """Draw figures, a link to Inspect, and the conversation; members of a group side by side."""
    kit.figures(item.facts, dense=True)
    link = {"trajectory": item.uid} if item.level == "trajectory" else {"step": item.uid}
    if item.level == "group":
        link = {"group": item.uid}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(f"<code>{kit.escape(item.uid)}</code>", width="content")
        if st.button("Open in Inspect", icon=":material/open_in_new:", type="tertiary", key="review-open"):
            state.goto("inspect", **link)
    if item.task:
        st.html(f'<div class="cs-task"><b>Task</b> {kit.escape(item.task)}</div>')
    if item.level != "group":
        show_reward_reason(item.trajectory_uid)
        components.messages_view(uid=item.uid, entries=item.columns[0][1], key="review-messages")
        return
    for start in range(0, len(item.columns), 2):
        for place, column in enumerate(st.columns(2, gap="small")):
            if start + place < len(item.columns):
                title, entries = item.columns[start + place]
                with column:
                    st.html(f'<div class="cs-note">{title}</div>')
                    components.messages_view(uid=f"{item.uid}-{title}", entries=entries, key=f"review-{start + place}")


def conversation(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation up to a step's answer, with early messages folded."""
    messages = list(step.get("messages") or [])
    early, late = messages[:-OPEN_MESSAGES], messages[-OPEN_MESSAGES:]
    entries: list[dict[str, Any]] = []
    if early:
        entries.append({"kind": "folded", "n": len(early), "label": "before", "entries": cards(early)})
    entries += cards(late, before=early)
    return entries + answer(step)


def _last_main_step(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """The trajectory's last main step, whose context contains most of the conversation."""
    main = [step["step_uid"] for step in steps if step.get("call_kind") == "main"]
    uids: list[str] = main or [step["step_uid"] for step in steps]
    return uids[-1] if uids else None


def task_of(pool: Pool, trajectory_uid: str) -> str:
    """The beginning of the trajectory's task."""
    return str(pool.trajectories.get(trajectory_uid, tokens=False).get("prompt_preview") or "")


def _step(pool: Pool, uid: str) -> ReviewItem:
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
    return ReviewItem(
        "step",
        uid,
        step["trajectory_uid"],
        (),
        facts,
        [("", delta(step, parent=parent, later=continuation(pool, step)))],
        task_of(pool, step["trajectory_uid"]),
    )


def _trajectory(pool: Pool, uid: str) -> ReviewItem:
    trajectory = pool.trajectories.get(uid, tokens=False)
    last = _last_main_step(trajectory["steps"])
    facts = [
        kit.Figure("Steps", kit.count(trajectory["n_steps"]), sub="complete" if trajectory["complete"] else "open"),
        kit.Figure("Reward", kit.number(trajectory["reward"]), sub=str(trajectory.get("outcome") or "")),
        kit.Figure("Unique tokens", kit.compact(trajectory["n_unique_tokens"])),
        kit.Figure("Agent", str(trajectory.get("agent") or kit.DASH), sub=str(trajectory.get("prompt_uid") or "")),
    ]
    entries = conversation(pool.steps.get(last)) if last else []
    return ReviewItem("trajectory", uid, uid, (), facts, [("", entries)], task_of(pool, uid))


def _group(pool: Pool, uid: str) -> ReviewItem:
    row = pool.groups.get(uid)
    members = row["trajectories"]
    columns = []
    reasons = reasons_of([member["trajectory_uid"] for member in members])
    for member in members:
        steps = pool.steps.page(
            View({"trajectory_uid": member["trajectory_uid"]}), order="step_index", limit=None
        ).to_pylist()
        last = _last_main_step(steps)
        entries = answer(pool.steps.get(last)) if last else []
        why = reward_headline(reasons[member["trajectory_uid"]]) if member["trajectory_uid"] in reasons else ""
        reward = f"reward <b>{kit.number(member['reward'])}</b> {kit.escape(why)}"
        title = f"{kit.escape(member['trajectory_uid'])} · {reward} · {len(steps)} steps"
        columns.append((title, entries))
    facts = [
        kit.Figure("Trajectories", kit.count(row["n_trajectories"]), sub=f"{kit.count(row['n_complete'])} complete"),
        kit.Figure("Success", kit.percent(row["success_rate"]), sub=f"{kit.count(row['n_scored'])} scored"),
        kit.Figure("Reward", kit.number(row["reward_mean"]), sub=f"± {kit.number(row['reward_std'])}"),
        kit.Figure("Task", str(row.get("prompt_preview") or kit.DASH)[:60]),
    ]
    return ReviewItem(
        "group",
        uid,
        members[0]["trajectory_uid"],
        tuple(m["trajectory_uid"] for m in members),
        facts,
        columns,
        str(row.get("prompt_preview") or ""),
    )
