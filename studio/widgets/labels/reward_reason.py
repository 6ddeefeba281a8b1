"""Why a trajectory has its reward: source, components, reason, the captured value under an override, findings."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from core.pool.query.rewardreason import GivenReward, RewardReason
from studio import state
from studio.kit.figures import section
from studio.kit.format import ago, escape, number

SOURCES = {"complete": "at completion", "steps": "sum of the steps' rewards"}
"""Sources that are no author -> their text."""
DETAIL_CHARS = 300


def show_reward_reason(trajectory_uid: str) -> None:
    """Draw why the trajectory has its reward."""
    reason = reasons_of([trajectory_uid]).get(trajectory_uid)
    if reason is None:
        return
    section("Why this reward")
    st.html(f'<div class="cs-why">{reason_html(reason, state.service().clock())}</div>')


def reasons_of(trajectory_uids: list[str]) -> dict[str, RewardReason]:
    """The reasons by uid."""
    return state.service().pool.rewards.reasons(trajectory_uids)


def reason_html(reason: RewardReason, now: float) -> str:
    """The reason as HTML."""
    lines = [f"<div><b>{escape(number(reason.reward))}</b> {escape(headline(reason))}</div>"]
    if (counted := reason.in_effect) is not None and counted.reason:
        lines.append(f'<div class="q">{escape(counted.reason)}</div>')
    if reason.components:
        cells = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(number(value))}</dd>" for name, value in reason.components.items()
        )
        lines.append(f'<dl class="cs-facts">{cells}</dl>')
    if reason.details:
        cells = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(detail_text(value))}</dd>" for name, value in reason.details.items()
        )
        lines.append(f'<dl class="cs-facts">{cells}</dl>')
    others = [one for one in reason.given if not one.in_effect]
    lines += [f'<div class="q">{given_html(one, now, reason)}</div>' for one in others]
    if reason.findings:
        tags = " ".join(f'<span class="cs-tag warn">{escape(name)}</span>' for name in reason.findings)
        lines.append(f"<div>{tags}</div>")
    return "".join(lines)


def reason_text(reason: RewardReason, now: float) -> str:
    """The reason as lines of text, for a tooltip."""
    lines = [f"{number(reason.reward)} {headline(reason)}"]
    if (counted := reason.in_effect) is not None and counted.reason:
        lines.append(counted.reason)
    values = [f"{name} {number(value)}" for name, value in reason.components.items()]
    values += [f"{name} {detail_text(value)}" for name, value in reason.details.items()]
    lines += values
    lines += [" ".join(given_parts(one, now, reason)) for one in reason.given if not one.in_effect]
    if reason.findings:
        lines.append(f"findings: {', '.join(reason.findings)}")
    return "\n".join(lines)


def headline(reason: RewardReason) -> str:
    """Who gave the reward, in one line without HTML."""
    if reason.policy is not None:
        return f"by reward policy {reason.policy}"
    counted = reason.in_effect
    if counted is None:
        return "no reward was given" if reason.reward is None else "source unknown"
    if counted.source in SOURCES:
        by = f" by {reason.verifier}" if reason.verifier and counted.source == "complete" else ""
        outcome = f", outcome {reason.outcome}" if reason.outcome and counted.source == "complete" else ""
        return f"{SOURCES[counted.source]}{by}{outcome}"
    over = reason.overridden
    instead = "" if over is None else f", overrides the captured {number(over.value)}"
    return f"by {counted.author} ({counted.source}){instead}"


def given_html(one: GivenReward, now: float, reason: RewardReason) -> str:
    """A reward that does not count alone, as HTML."""
    label, value, origin = given_parts(one, now, reason)
    return f"{label} <b>{escape(value)}</b> {escape(origin)}"


def given_parts(one: GivenReward, now: float, reason: RewardReason) -> tuple[str, str, str]:
    """A reward that does not count alone: what it is, its value, and who gave it when and why."""
    value = "withdrawn" if one.value is None else number(one.value)
    if one.source in SOURCES:
        who = SOURCES[one.source] + (f" by {reason.verifier}" if reason.verifier and one.source == "complete" else "")
    else:
        who = f"by {one.author} ({one.source})"
    when = "" if one.at is None else f", {ago(one.at, now)}"
    why = f": {one.reason}" if one.reason else ""
    label = "captured" if one.source in SOURCES else "earlier" if reason.policy is None else "given"
    return label, value, who + when + why


def detail_text(value: Any) -> str:
    """A detail of a verifier as one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= DETAIL_CHARS else text[:DETAIL_CHARS] + "…"
