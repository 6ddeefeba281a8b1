"""The Inspect page: from the pool's trajectories down to one token. Every level has a URL."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.errors import NotFound
from core.pool.edits import is_reference
from studio import components, kit, state
from studio.frame.header import page_header
from studio.kit import data_tables
from studio.kit.figures import Tone
from studio.kit.filters import filter_panel
from studio.kit.url_choices import segmented_choice
from studio.widgets.agents.demo import demo_actions
from studio.widgets.inspect import step_view
from studio.widgets.inspect.edit_answer import edit_tab
from studio.widgets.inspect.group_view import group_page
from studio.widgets.inspect.listing import listing
from studio.widgets.inspect.neighbours import neighbour_buttons
from studio.widgets.inspect.pair import pair_page
from studio.widgets.inspect.run_pair import run_pair_page
from studio.widgets.inspect.token_view import comparison_picker, show_tokens
from studio.widgets.labels.panel import Target, annotation_history, label_panel
from studio.widgets.labels.reward_reason import show_reward_reason
from studio.widgets.steps.transcript import shortened, transcript

TASK_CHARS = 56
TABS = {
    "messages": "Messages",
    "transcript": "Transcript",
    "tokens": "Tokens",
    "facts": "Facts",
    "raw": "Raw",
    "edit": "Edit",
    "history": "Labels",
}


def list_page() -> None:
    """Filters and facets beside the table of trajectories, groups or steps."""
    pool = state.service().pool
    if pool.stats.totals()["n_steps"] == 0:
        kit.empty_state(
            "The pool is empty", "Point an agent at the gateway, or load the demo data.", actions=demo_actions
        )
        return
    left, right = st.columns([2.1, 9], gap="medium")
    with left, st.container(key="facet-column"):
        view = filter_panel("inspect", of_trajectories=state.query("level") != "steps")
    with right, kit.error_boundary():
        if view is not None:
            listing(view)


def trajectory_page(uid: str) -> None:
    """Timeline, the chosen step, and the labels of both."""
    service = state.service()
    crumbs = st.container(horizontal=True, vertical_alignment="center", gap="small", key="crumbs")
    if crumbs.button("All trajectories", icon=":material/arrow_back:", key="back", type="tertiary"):
        state.set_query(trajectory=None, step=None, tab=None)
        st.rerun()
    summary = service.pool.trajectories.get(uid, tokens=False)
    steps = summary["steps"]
    with crumbs:
        breadcrumbs(uid, summary)
        st.space("stretch")
        neighbour_buttons(uid)
    summary_row(summary)
    if not steps:
        kit.empty_state("No step yet", "The trajectory is registered; its first call has not arrived.")
        return
    uids = [step["step_uid"] for step in steps]
    requested = state.query("step")
    chosen = requested if requested is not None and requested in uids else uids[0]
    if state.query("tab") == "transcript":
        wide, right = st.columns([9.3, 2.4], gap="small")
        with wide, kit.error_boundary():
            step_bar(chosen, uids)
            show_transcript(uid, focus=requested)
        with right, kit.error_boundary():
            show_reward_reason(uid)
            labels(uid, chosen, summary)
        return
    left, middle, right = st.columns([2.7, 6.6, 2.4], gap="small")
    with left, kit.error_boundary():
        key = components.mount_key("timeline", uid)
        components.timeline(
            steps=step_view.timeline_rows(steps),
            selected=chosen,
            key=key,
            height=640,
            stepped=lambda: state.set_query(step=st.session_state[key]["step"]),
        )
    with middle, kit.error_boundary():
        chosen_step(chosen, uids, steps)
    with right, kit.error_boundary():
        show_reward_reason(uid)
        labels(uid, chosen, summary)


def breadcrumbs(uid: str, summary: dict[str, Any]) -> None:
    """The group, the trajectory and its task on one line."""
    group = summary.get("prompt_uid")
    if group and st.button(
        f"Group {kit.escape_markdown(kit.short_uid(group, 22))}",
        icon=":material/groups:",
        key="open-group",
        type="tertiary",
        help=kit.escape_markdown(group),
    ):
        state.set_query(trajectory=None, step=None, tab=None, group=group)
        st.rerun()
    st.html(f"<code title='{kit.escape(uid)}'>{kit.escape(uid)}</code>", width="content")
    st.html(kit.caption_html(data_tables.cut_text(str(summary.get("prompt_preview") or ""), TASK_CHARS)))


def summary_row(summary: dict[str, Any]) -> None:
    """Figures of the trajectory."""
    policy = data_tables.version_span(summary.get("policy_version_min"), summary.get("policy_version_max"))
    quality = summary.get("quality")
    tones: dict[str, Tone] = {"good": "good", "bad": "bad", "unsure": "warn"}
    tone = tones.get(quality or "", "")
    kit.figures(
        [
            kit.Figure("Steps", kit.count(summary.get("n_steps") or len(summary["steps"])), help="step"),
            kit.Figure(
                "Unique tokens", kit.compact(summary.get("n_unique_tokens")), help="Each stored token counted once"
            ),
            kit.Figure("Sampled", kit.compact(summary.get("n_response_tokens")), help="Response tokens"),
            kit.Figure("Reward", kit.number(summary.get("reward")), help="reward"),
            kit.Figure("Quality", quality or kit.DASH, tone=tone, help="Label of the whole trajectory"),
            kit.Figure("Policy", policy or kit.DASH, help="policy version"),
            kit.Figure(
                "Agent",
                str(summary.get("agent") or kit.DASH),
                sub=f"run {summary['run']}" if summary.get("run") else "",
                help="agent",
            ),
            kit.Figure(
                "State",
                "complete" if summary.get("complete") else "open",
                sub=str(summary.get("outcome") or ""),
                help="complete",
            ),
        ],
        dense=True,
    )


def open_step(uid: str) -> None:
    """Select a step. It is a callback, so that a key press draws the page once."""
    state.set_query(step=uid)


def chosen_step(chosen: str, uids: list[str], steps: list[dict[str, Any]]) -> None:
    """The chosen step under its tabs."""
    service = state.service()
    tab = step_bar(chosen, uids)
    # Restoring the tokens of a long context takes longer than the rest of a step.
    step = service.pool.steps.get(chosen, tokens=tab != "messages")
    if tab == "messages":
        step_view.show_messages(step, steps, service.pool)
    elif tab == "tokens":
        other = comparison_picker(step)
        show_tokens(step, service.settings, other=other, height=470)
    elif tab == "facts":
        step_view.show_facts(step)
    elif tab == "raw":
        step_view.show_raw(step)
    elif tab == "edit":
        edit_tab(step)
    else:
        rows = service.pool.labels.annotations(trajectory_uid=step["trajectory_uid"])
        annotation_history(rows, now=service.clock())


def step_bar(chosen: str, uids: list[str]) -> str:
    """The tabs, and the buttons of the previous and next step with the keys K and J; returns the tab."""
    place = uids.index(chosen)
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        tab = segmented_choice("Step", TABS, "tab", keep_page=True)
        st.space("stretch")
        if tab == "transcript":
            return tab
        last = place + 1 == len(uids)
        before, after = uids[max(place - 1, 0)], uids[min(place + 1, len(uids) - 1)]
        up, down = ":material/keyboard_arrow_up:", ":material/keyboard_arrow_down:"
        with st.container(horizontal=True, gap="xsmall", width="content"):
            st.button(
                "Previous step",
                icon=up,
                key="previous",
                shortcut="K",
                disabled=place == 0,
                on_click=open_step,
                args=(before,),
            )
            st.button(
                "Next step", icon=down, key="next", shortcut="J", disabled=last, on_click=open_step, args=(after,)
            )
    return tab


def show_transcript(uid: str, *, focus: str | None) -> None:
    """All turns of the trajectory in one scroll; a turn's button opens its step."""
    service = state.service()
    turns, n_cut = transcript_of(f"{service.settings.pool_path} {service.port}", service.pool.n_writes, uid)
    key = components.mount_key("transcript", uid)
    components.transcript_view(
        uid=uid,
        turns=turns,
        n_cut=n_cut,
        focus=focus,
        key=key,
        opened=lambda: state.set_query(step=st.session_state[key]["step"], tab=None),
    )


@st.cache_resource(max_entries=2, show_spinner=False)
def transcript_of(opened: str, n_writes: int, uid: str) -> tuple[list[dict[str, Any]], int]:
    """The turns of a trajectory, and how many of their texts are cut; the same until the pool is written to."""
    turns = transcript(state.service().pool.trajectories.turns(uid))
    return turns, shortened(turns)


def labels(trajectory_uid: str, step_uid: str, summary: dict[str, Any]) -> None:
    """Label controls for the step or for the whole trajectory."""
    service = state.service()
    about = segmented_choice("Label", {"trajectory": "Trajectory", "step": "Step"}, "about", keep_page=True)
    current = service.pool.review.standing("step", step_uid) if about == "step" else summary
    target = Target(about, step_uid if about == "step" else trajectory_uid)
    label_panel(
        target,
        current=current,
        annotations=service.pool.labels.annotations(trajectory_uid=trajectory_uid),
        captured_reward=current.get("original_reward"),
        shortcuts=True,
    )


def inspect_page() -> None:
    """The item in the URL, or the list."""
    trajectory = state.query("trajectory")
    if trajectory is not None and is_reference(trajectory):
        # A plan names an edited answer by its edit.
        step_uid = state.service().pool.edits.captured_step(trajectory)
        state.set_query(trajectory=None, step=step_uid, tab="edit")
        trajectory = None
    if trajectory is None and (step := state.query("step")) is not None:
        trajectory = state.service().pool.steps.get(step)["trajectory_uid"]
    if runs := st.query_params.get_all("runs"):
        run_pair_page(runs)
    elif pair := st.query_params.get_all("compare"):
        pair_page(pair)
    elif trajectory is not None:
        trajectory_page(trajectory)
    elif (group := state.query("group")) is not None:
        group_page(group)
    else:
        list_page()


def not_found(error: NotFound) -> None:
    """The item in the URL is not in the pool: show the error and a link to the list."""
    kit.show_error(error)
    st.caption("The link may be for another pool, or retention has deleted it. Search by text or uid in the list.")
    if st.button("Show all", icon=":material/table_rows:", key="absent-list"):
        state.set_query(**dict.fromkeys(("trajectory", "step", "group", "compare", "runs", "tab", "place")))
        st.rerun()


page_header("inspect")
try:
    inspect_page()
except NotFound as missing:
    not_found(missing)
