"""The same task under the run's first version and now, side by side, with the first action that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.batch.learning import Turn, first_difference, turns
from studio import kit, state
from studio.kit.url_choices import list_choice


def comparison(pairs: Sequence[Mapping[str, Any]]) -> None:
    """Draw one of ``pool.learning.pairs``; the choice is in the URL."""
    if not pairs:
        st.caption("Needs a held-out task with attempts under two versions.")
        return
    # The most telling pair first: failed before, solved now.
    ordered = sorted(pairs, key=lambda pair: pair["before_reward"] - pair["after_reward"])
    labels = {
        pair["prompt_uid"]: kit.escape_markdown(
            f"{pair['prompt_preview'] or pair['prompt_uid']}  ·  {kit.number(pair['before_reward'])} → "
            f"{kit.number(pair['after_reward'])}"
        )
        for pair in ordered
    }
    chosen = list_choice("Task", labels, "task", default=ordered[0]["prompt_uid"])
    pair = next(one for one in pairs if one["prompt_uid"] == chosen)
    pool = state.service().pool
    before, after = turns(pool, pair["before_uid"]), turns(pool, pair["after_uid"])
    place = first_difference(before, after)
    left, right = st.columns(2, gap="medium")
    for column, side, made in ((left, "before", before), (right, "after", after)):
        version, uid, reward = pair[f"{side}_version"], pair[f"{side}_uid"], pair[f"{side}_reward"]
        with column:
            st.html(_side_html(made, place, f"Version {version}", uid, reward))
    st.caption("The same actions." if place is None else f"First different action: turn {place + 1}.")


def _side_html(made: Sequence[Turn], place: int | None, title: str, uid: str, reward: float) -> str:
    lines = "".join(
        f'<div class="turn{" differs" if number == place else ""}">'
        f'<a class="a" href="{kit.escape(state.link("inspect", step=turn.step_uid))}" target="_self">'
        f"{kit.escape(turn.action) or '(empty)'}</a>"
        + (f'<div class="r">{kit.escape(turn.result)}</div>' if turn.result is not None else "")
        + "</div>"
        for number, turn in enumerate(made)
    )
    tone = "good" if reward >= 0.5 else "bad"
    link = kit.escape(state.link("inspect", trajectory=uid))
    return (
        f'<div class="cs-turns"><div class="t"><a href="{link}" target="_self">{kit.escape(title)}</a> '
        f'<span class="cs-tag {tone}">reward {kit.number(reward)}</span></div>{lines}</div>'
    )
