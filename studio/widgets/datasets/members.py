"""The rows of a dataset version: its steps with their frozen rewards and labels, filtered, sorted and in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.batch.versions import member_rows
from core.pool.query.members import MEMBER_COLUMNS, REWARDS, MemberFilter
from studio import kit, state
from studio.kit import column_choice, data_tables
from studio.kit.url_choices import list_choice

PAGE = 50
ANY = "any"
PARAMS = ("m_text", "m_reward", "m_agent", "m_kind", "m_quality", "m_trainable", "m_masked")
"""Filters of the rows in the URL."""
OPENED, EPOCH = "member-opened", "member-epoch"
"""Keys of the session state: the step whose row was clicked, and how many were."""
YES_NO = {"yes": True, "no": False}


def member_table() -> data_tables.TableSpec:
    """Steps of a version, one per row."""
    c = st.column_config
    return data_tables.TableSpec(
        "step_uid",
        ("place", "trajectory_uid", "step_index", "preview", "trajectory_reward", "reward", "trainable",
         "n_prompt_tokens", "n_response_tokens", "n_masked_tokens"),
        {
            "place": c.NumberColumn("Row", width=52, help="Place in the version, from 0", format="localized"),
            "trajectory_uid": c.TextColumn("Trajectory", width=148),
            "step_index": c.NumberColumn("Step", width=48, help="Position in the trajectory, from 0"),
            "preview": c.TextColumn("Answer", width=200),
            "trajectory_reward": c.NumberColumn("Trajectory reward", width=126, format="%.3g"),
            "reward": c.NumberColumn("Step reward", width=84, format="%.3g"),
            "trajectory_quality": c.TextColumn("Trajectory quality", width=116),
            "quality": c.TextColumn("Step quality", width=84),
            "trainable": c.CheckboxColumn("Trainable", width=70),
            "tags": c.ListColumn("Tags", width=90),
            "call_kind": c.TextColumn("Kind", width=68),
            "agent": c.TextColumn("Agent", width=92),
            "n_prompt_tokens": c.NumberColumn("Prompt", width=64, format="localized"),
            "n_response_tokens": c.NumberColumn("Response", width=74, format="localized"),
            "n_masked_tokens": c.NumberColumn("Masked", width=62, format="localized", help="Redacted tokens"),
            "policy_version": c.NumberColumn("Policy", width=56),
            "trajectory_correct": c.CheckboxColumn("Trajectory correct", width=112),
            "correct": c.CheckboxColumn("Step correct", width=84),
            "model": c.TextColumn("Model", width=90),
            "prompt_uid": c.TextColumn("Prompt group", width=120),
            "step_uid": c.TextColumn("Step uid", width=164),
        },
    )  # fmt: skip


def member_section(head: Mapping[str, Any]) -> None:
    """Filters, counts and a page of the version's rows; a click on a row opens its step in Inspect."""
    pool = state.service().pool
    name = head["name"]
    chosen = member_filter(pool.versions.member_values(name), redacted=head["redaction"] is not None)
    counts = pool.versions.summary(name, chosen)
    kit.figures(
        [
            kit.Figure("Steps", kit.count(counts["n_steps"]), sub=f"of {kit.count(head['n_steps'])}"),
            kit.Figure("Trajectories", kit.count(counts["n_trajectories"])),
            kit.Figure("Scored", kit.count(counts["n_scored"]), sub="trajectories"),
            kit.Figure("Success", kit.percent(counts["n_success"], counts["n_scored"]), help="Reward above 0.5"),
            kit.Figure("Mean reward", kit.number(counts["mean_reward"]), sub="by trajectory"),
        ],
        dense=True,
    )
    if not counts["n_steps"]:
        kit.empty_state("No row matches", "Remove a filter to see more.", icon="filter_alt_off")
        return
    sorting = data_tables.Sorting.from_query(list(MEMBER_COLUMNS), "place asc", "m_order")
    page = min(data_tables.page_from_query(), -(-counts["n_steps"] // PAGE))
    rows = member_rows(pool, name, chosen, order=sorting.order, limit=PAGE, offset=(page - 1) * PAGE)
    spec = column_choice.with_columns(member_table(), "members")
    with st.container(horizontal=True, horizontal_alignment="right"):
        column_choice.table_settings(sorting, spec, "members")
    columns = [one for one in spec.columns if one != "n_masked_tokens" or head["redaction"] is not None]
    uids = rows["step_uid"].to_pylist()
    # A table whose row was opened is mounted anew, so that the way back finds no selected cell.
    epoch = st.session_state.setdefault(EPOCH, 0)
    key = f"members-{head['version_uid']}-{hash((chosen, sorting.order, page, *columns))}-{epoch}"
    frame = data_tables.to_frame(rows)
    st.dataframe(
        data_tables.fitted(frame),
        hide_index=True,
        column_order=columns,
        column_config=sorting.marked(data_tables.with_reward_bars(spec.config, frame)),
        on_select=lambda: _clicked(key, uids, sorting),
        selection_mode=["single-column", "single-cell"],
        placeholder="",
        row_height=data_tables.ROW_HEIGHT,
        height=min(560, data_tables.HEADER_HEIGHT + data_tables.ROW_HEIGHT * len(uids)),
        key=key,
    )
    data_tables.pagination(counts["n_steps"], key="members", size=PAGE, noun="steps")
    if (opened := st.session_state.pop(OPENED, None)) is not None:
        state.goto("inspect", step=opened)


def _clicked(key: str, uids: Sequence[str], sorting: data_tables.Sorting) -> None:
    # A callback runs before the page is drawn: a click on a heading draws the sorted rows once.
    selection = st.session_state[key]["selection"]
    if selection["columns"]:
        sorting.clicked(selection["columns"][0])
    elif selection["cells"] and selection["cells"][0][0] < len(uids):
        st.session_state[OPENED] = uids[selection["cells"][0][0]]
        st.session_state[EPOCH] += 1


def member_filter(values: Mapping[str, list[str]], *, redacted: bool) -> MemberFilter:
    """A row of filters, which are in the URL."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="member-filters"):
        st.session_state["member-text"] = state.query("m_text", "") or ""
        st.text_input("Uid", placeholder="part of a uid", key="member-text", on_change=_typed, width=200)
        reward = list_choice("Reward", {ANY: "any", **{one: one for one in REWARDS}}, "m_reward", width=130)
        agent = list_choice("Agent", {ANY: "any", **{one: one for one in values["agent"]}}, "m_agent", width=150)
        kind = list_choice("Kind", {ANY: "any", **{one: one for one in values["call_kind"]}}, "m_kind", width=130)
        qualities = {ANY: "any", **{one: one for one in values["trajectory_quality"]}}
        quality = list_choice("Quality", qualities, "m_quality", width=120)
        flags = {ANY: "any", "yes": "yes", "no": "no"}
        trainable = list_choice("Trainable", flags, "m_trainable", width=100)
        masked = list_choice("Redacted", flags, "m_masked", width=100) if redacted else ANY
        if any(state.query(param) for param in PARAMS):
            st.button("Remove filters", type="tertiary", icon=":material/close:", on_click=_remove, key="member-clear")
    return MemberFilter(
        text=(state.query("m_text", "") or "").strip(),
        reward=None if reward == ANY else reward,
        agent=None if agent == ANY else agent,
        call_kind=None if kind == ANY else kind,
        trajectory_quality=None if quality == ANY else quality,
        trainable=YES_NO.get(trainable),
        masked=YES_NO.get(masked),
    )


def _typed() -> None:
    state.set_query(m_text=st.session_state["member-text"].strip() or None, page=None)


def _remove() -> None:
    state.set_query(**dict.fromkeys((*PARAMS, "page")))
