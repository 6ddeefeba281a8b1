"""Two steps, or two trajectories, side by side. Their uids are in the URL: ``?compare=…&compare=…``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.errors import NotFound
from core.pool import Pool
from studio import components, kit, state
from studio.kit.data_tables import version_span
from studio.kit.html_tables import html_table
from studio.kit.url_choices import segmented_choice
from studio.widgets.inspect.divergence import find_divergence, first_divergent
from studio.widgets.inspect.group_view import sibling_rows, steps_of
from studio.widgets.inspect.token_view import all_ids, show_tokens
from studio.widgets.labels.reward_reason import reason_html, reasons_of
from studio.widgets.plans.group_credit import group_plan
from studio.widgets.steps.continuation import continuation
from studio.widgets.steps.messages import answer, cards

TABS = {"messages": "Messages", "tokens": "Tokens", "facts": "Facts"}
STEP_FACTS = (
    "trajectory_uid", "prompt_uid", "step_index", "agent", "model", "policy_version", "reward", "trajectory_reward",
    "quality", "trainable", "transition", "call_kind", "finish_reason", "n_prompt_tokens", "n_response_tokens",
    "latency_s", "token_source", "tokenizer_hash", "created_at",
)  # fmt: skip
Row = Mapping[str, Any]


def pair_page(uids: Sequence[str]) -> None:
    """Draw the two items in the URL, each a step or a trajectory; a step beside a trajectory means its trajectory."""
    pool = state.service().pool
    crumbs = st.container(horizontal=True, vertical_alignment="center", gap="small", key="crumbs")
    if crumbs.button("Back", icon=":material/arrow_back:", key="back", type="tertiary"):
        state.set_query(compare=None, place=None, tab=None)
        st.rerun()
    if len(uids) != 2:
        kit.empty_state(
            "Select two items", "Select two rows of a table, or two trajectories of a group.", icon="compare"
        )
        return
    steps = set(pool.steps.existing(uids))
    with crumbs:
        if st.button("Swap", icon=":material/swap_horiz:", key="swap", type="tertiary"):
            state.set_query(compare=[uids[1], uids[0]])
            st.rerun()
    if len(steps) == len(set(uids)):
        one, other = (pool.steps.get(uid) for uid in uids)
        step_figures(one, other)
        side_by_side(one, other)
        return
    trajectory_pair(pool, [pool.steps.get(uid)["trajectory_uid"] if uid in steps else uid for uid in uids])


def trajectory_pair(pool: Pool, uids: Sequence[str]) -> None:
    """Both as rows of steps, and the step of the first difference side by side; J and K go forward and back."""
    members = [pool.trajectories.get(uid, tokens=False) for uid in uids]
    steps = steps_of(pool, uids)
    one, other = (steps[uid] for uid in uids)
    if not one or not other:
        raise NotFound("One of the two has no step yet.", field="compare")
    parting = find_divergence(pool.steps, one, other)
    trajectory_figures(members, one, other, None if parting is None else parting.place)
    reward_reasons([str(member["trajectory_uid"]) for member in members])
    last = max(len(one), len(other)) - 1
    requested = state.query("place")
    first = 0 if parting is None else parting.place
    place = min(int(requested), last) if requested and requested.isdigit() else min(first, last)
    advantages: dict[str, float | None] = {}
    for member in members:
        plan, _ = group_plan(str(member["prompt_uid"]), str(member["channel"]))
        advantages |= {row["trajectory_uid"]: row["advantage"] for row in plan.trajectories.to_pylist()}
    pair = [rollout[min(place, len(rollout) - 1)] for rollout in (one, other)]
    rows = sibling_rows(pool, members, steps, uids[0], advantages)
    for row, shown in zip(rows, pair, strict=True):
        for cell in row["cells"]:
            cell["selected"] = cell["uid"] == shown["step_uid"]
    clicked = components.siblings(rows=rows, key=components.mount_key("pair", *uids), height=200, acts=False)
    if clicked is not None:
        if clicked["what"] == "step":
            places = [
                n for rollout in (one, other) for n, step in enumerate(rollout) if step["step_uid"] == clicked["uid"]
            ]
            state.set_query(place=places[0])
        elif clicked["what"] == "trajectory":
            state.set_query(compare=None, place=None, trajectory=clicked["uid"], step=None)
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        indices = dict.fromkeys(
            kit.count(rollout[place]["step_index"]) for rollout in (one, other) if place < len(rollout)
        )
        named = f"Step {' and '.join(indices)}" if len(indices) == 1 else f"Steps {' and '.join(indices)}"
        st.caption(f"{named} · position {place + 1} of {last + 1}")
        if st.button(
            "Previous step", icon=":material/keyboard_arrow_up:", key="previous", shortcut="K", disabled=place == 0
        ):
            state.set_query(place=place - 1)
            st.rerun()
        if st.button(
            "Next step", icon=":material/keyboard_arrow_down:", key="next", shortcut="J", disabled=place == last
        ):
            state.set_query(place=place + 1)
            st.rerun()
    side_by_side(
        *(pool.steps.get(rollout[place]["step_uid"]) if place < len(rollout) else None for rollout in (one, other))
    )


def reward_reasons(uids: list[str]) -> None:
    """Why the two trajectories have their rewards, in two columns."""
    reasons = reasons_of(uids)
    now = state.service().clock()
    for column, uid in zip(st.columns(2, gap="small"), uids, strict=True):
        if uid in reasons:
            column.html(f'<div class="cs-why">{reason_html(reasons[uid], now)}</div>')


def side_by_side(one: Row | None, other: Row | None) -> None:
    """Messages, tokens or facts of two steps in two columns; None where a trajectory has no such step."""
    tab = segmented_choice("Shown", TABS, "tab")
    if tab == "facts":
        facts_table(one, other)
        return
    folded = 0 if one is None or other is None else shared_messages(one, other)
    for place, (column, step) in enumerate(zip(st.columns(2, gap="small"), (one, other), strict=True)):
        with column:
            if step is None:
                kit.empty_state("No step here", "This trajectory ends earlier.", icon="block")
                continue
            step_title(step, "AB"[place])
            if tab == "tokens":
                against = other if place == 0 else one
                show_tokens(step, state.service().settings, other=against, key=f"pair-tokens-{place}", height=480)
            else:
                entries = step_cards(step, folded, continuation(state.service().pool, step))
                components.messages_view(
                    uid=f"{step['step_uid']}-{folded}", entries=entries, key=f"pair-messages-{place}"
                )


def step_title(step: Row, letter: str) -> None:
    """The step that a column shows, with a button that opens it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(f"<b>{letter}</b> <code>{kit.escape(step['step_uid'])}</code>", width="content")
        if st.button("Open", icon=":material/open_in_new:", type="tertiary", key=f"open-{letter}"):
            state.set_query(
                compare=None, place=None, tab=None, trajectory=step["trajectory_uid"], step=step["step_uid"]
            )
            st.rerun()


def shared_messages(one: Row, other: Row) -> int:
    """Number of leading messages that both prompts share."""
    shared = 0
    for mine, theirs in zip(one.get("messages") or [], other.get("messages") or [], strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def step_cards(step: Row, folded: int, later: Sequence[Row]) -> list[dict[str, Any]]:
    """The step's cards, the first ``folded`` messages folded; results of its calls are read from ``later``."""
    messages = list(step.get("messages") or [])
    entries: list[dict[str, Any]] = []
    if folded:
        label = "shared by both prompts"
        entries.append({"kind": "folded", "n": folded, "label": label, "entries": cards(messages[:folded])})
    entries += cards(messages[folded:], before=messages[:folded])
    return entries + answer(step, later)


def step_figures(one: Row, other: Row) -> None:
    """Figures of two steps: the first difference, and values of each."""
    a, b = all_ids(one), all_ids(other)
    at = first_divergent(a, b)
    n_prompt = min(_n(one, "n_prompt_tokens"), _n(other, "n_prompt_tokens"))
    where = "equal" if at is None else "in the prompt" if at < n_prompt else "in the answer"
    shared = len(a) if at is None else at
    kit.figures(
        [
            kit.Figure("First difference", "none" if at is None else f"token {kit.count(at)}", sub=where),
            kit.Figure("Shared", kit.count(shared), sub=f"{kit.percent(shared, max(len(a), len(b)))} of the longer"),
            kit.Figure("Prompt tokens", both_values(one, other, "n_prompt_tokens")),
            kit.Figure("Answer tokens", both_values(one, other, "n_response_tokens")),
            kit.Figure(
                "Reward",
                both_values(one, other, "reward"),
                sub=f"trajectory {both_values(one, other, 'trajectory_reward')}",
            ),
            kit.Figure("Policy", both_values(one, other, "policy_version")),
        ],
        dense=True,
    )


def trajectory_figures(members: Sequence[Row], one: Sequence[Row], other: Sequence[Row], parts: int | None) -> None:
    """Figures of two trajectories: the first difference, and values of each."""
    a, b = members
    versions = [version_span(m["policy_version_min"], m["policy_version_max"]) or kit.DASH for m in members]
    kit.figures(
        [
            kit.Figure("First difference", "none" if parts is None else f"step {kit.count(parts)}"),
            kit.Figure("Main steps", f"{len(one)} | {len(other)}"),
            kit.Figure("Reward", both_values(a, b, "reward")),
            kit.Figure("Sampled", both_values(a, b, "n_response_tokens")),
            kit.Figure("Quality", f"{a['quality'] or kit.DASH} | {b['quality'] or kit.DASH}"),
            kit.Figure("Policy", " | ".join(versions)),
            kit.Figure("Same task", "yes" if a["prompt_uid"] == b["prompt_uid"] else "no"),
        ],
        dense=True,
    )


def facts_table(one: Row | None, other: Row | None) -> None:
    """Fields of the two steps; those that differ are marked."""
    rows = []
    for name in STEP_FACTS:
        a, b = (None if step is None else step.get(name) for step in (one, other))
        mark = "≠" if a != b else ""
        rows.append((kit.escape(name), kit.escape(a), kit.escape(b), mark))
    html_table(("field", "A", "B", ""), rows)


def both_values(one: Row, other: Row, name: str) -> str:
    """A number of each step or trajectory."""
    return " | ".join(kit.number(row.get(name)) if row.get(name) is not None else kit.DASH for row in (one, other))


def _n(step: Row, name: str) -> int:
    return int(step.get(name) or 0)
