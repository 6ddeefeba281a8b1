"""The task of a prompt group, and where its attempts part: which tool call or sentence decides."""

from __future__ import annotations

import streamlit as st

from core.report.decisions import Action, Decision, GroupSummary, Way
from studio import kit, state
from studio.kit.figures import Tone

TEXT_CHARS = 220
SHOWN = 4
"""Decisions that are drawn at once."""


def show_summary(summary: GroupSummary) -> None:
    """Draw the task and the decisions, the deciding one first."""
    if summary.task:
        st.html(f'<div class="cs-task"><b>Task</b> {kit.escape(summary.task)}</div>')
    if not summary.decisions:
        return
    kit.section(
        "What decides", "where attempts that acted alike so far do different things; by tool calls and sentences"
    )
    deciding = summary.deciding
    if deciding is None:
        st.html(kit.caption_html("No decision explains the rewards: they are equal, unknown, or differ by chance."))
    others = [one for one in summary.decisions if one is not deciding]
    ordered = ([] if deciding is None else [deciding]) + others
    st.html("".join(decision_html(one, deciding=one is deciding) for one in ordered[:SHOWN]))
    if len(ordered) > SHOWN:
        with st.expander(f"{kit.counted(len(ordered) - SHOWN, 'more decision')}", icon=":material/call_split:"):
            st.html("".join(decision_html(one, deciding=False) for one in ordered[SHOWN:]))


def decision_html(one: Decision, *, deciding: bool) -> str:
    """A decision with its ways, as HTML."""
    where = "At the first action" if one.last is None else f"After {kit.escape(shortened(one.last))}"
    explains = "" if one.explained is None else f" · explains {kit.percent(one.explained)} of the rewards' variance"
    mark = "<b>Decides</b> · " if deciding else ""
    head = (
        f"{mark}{where} · {kit.counted(one.n_attempts, 'attempt')} · agreement {kit.percent(one.agreement)}{explains}"
    )
    best, worst = one.ways[0].mean, one.ways[-1].mean
    ways = "".join(way_html(way, differs=best is not None and best != worst) for way in one.ways)
    return f'<div class="cs-decision{" deciding" if deciding else ""}"><div class="h">{head}</div>{ways}</div>'


def way_html(way: Way, *, differs: bool) -> str:
    """One way on: mean reward, number of attempts, and the action as a link to its step."""
    tone: Tone = "" if way.mean is None or not differs else "good" if way.mean > 0.5 else "bad"
    n = kit.counted(len(way.trajectory_uids), "attempt")
    if way.action is None:
        link = state.link("inspect", trajectory=way.trajectory_uids[0])
        text, full = "ends here", "These attempts take no further action"
    else:
        link = state.link("inspect", step=way.action.step_uid)
        text, full = shortened(way.action), way.action.text
    return (
        f'<div class="w"><b class="{tone}">{kit.number(way.mean)}</b><span>{n}</span>'
        f'<a href="{kit.escape(link)}" target="_self" title="{kit.escape(full)}">{kit.escape(text)}</a></div>'
    )


def shortened(action: Action) -> str:
    """An action in one line; a sentence in quotation marks."""
    text = action.text if len(action.text) <= TEXT_CHARS else action.text[:TEXT_CHARS] + "…"
    return text if action.kind == "call" else f"“{text}”"
