"""Reward policies: rules that combine rewards of verifiers, judges, people and services; preview and adoption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from core.rewards.policy import RULES
from core.types import View
from studio import kit, state
from studio.charts import theme
from studio.kit.html_tables import bars, html_table


def rewards_tab() -> None:
    """Sources of rewards, the rule editor, a preview, and the form that adopts the rule."""
    pool = state.service().pool
    channels = [str(value) for value, _ in pool.stats.facets(View(), ["channel"])["channel"]] or ["train"]
    left, right = st.columns([3, 7], gap="medium")
    with left:
        channel = st.selectbox("Channel", channels, key="policy-channel")
        adopted = pool.rewards.adopted(channel)
        st.html(
            '<div class="cs-note">In effect: <b>'
            + (kit.escape(f"{adopted['name']} v{adopted['version']}") if adopted else "the newest reward")
            + "</b></div>"
        )
        if adopted and st.button("Use the newest reward", key="policy-none"):
            pool.rewards.adopt(channel, None, author=state.author())
            st.rerun()
        sources = pool.rewards.sources(channel=channel)
        kit.section("Reward sources", "scored trajectories of each")
        bars([(row["source"], row["n_trajectories"]) for row in sources]) if sources else st.caption("No rewards yet.")
        policy = rule_editor([row["source"] for row in sources])
    with right:
        if policy is None:
            kit.empty_state("Choose a reward source", "This rule needs at least one.", icon="rule")
            return
        preview(policy, channel)
        adopt_form(policy, channel)


def rule_editor(sources: list[str]) -> dict[str, Any] | None:
    """The edited rule; None while it is incomplete."""
    name = st.selectbox("Rule", list(RULES), format_func=lambda key: f"{key}: {RULES[key]}", key="policy-rule")
    if name == "weighted":
        weights = {
            source: st.number_input(
                kit.escape_markdown(source), min_value=0.0, value=1.0, step=0.1, key=f"weight-{source}"
            )
            for source in sources
        }
        missing = st.segmented_control(
            "If a source is missing", ["skip", "unscored"], default="skip", required=True, key="policy-missing"
        )
        kept = {source: weight for source, weight in weights.items() if weight > 0}
        return {"rule": name, "weights": kept, "missing": missing} if kept else None
    chosen = st.multiselect(
        "Reward sources, first available" if name == "precedence" else "Use only",
        sources,
        default=sources if name == "precedence" else [],
        accept_new_options=True,
        placeholder="all sources",
        key=f"policy-sources-{name}",
    )
    return None if name == "precedence" and not chosen else {"rule": name, "sources": chosen}


def preview(policy: Mapping[str, Any], channel: str) -> None:
    """Rewards before and after, without writing anything."""
    effect = state.service().pool.rewards.preview(policy, channel=channel)
    counts = effect["counts"]
    kit.section("Preview", "nothing changes until you adopt the rule")
    kit.figures(
        [
            kit.Figure(
                "Trajectories changed",
                kit.count(counts["n_trajectories_changed"]),
                sub=out_of(counts["n_trajectories"]),
            ),
            kit.Figure("Steps changed", kit.count(counts["n_steps_changed"]), sub=out_of(counts["n_steps"])),
            kit.Figure("Groups changed", kit.count(counts["n_groups_changed"]), sub=out_of(counts["n_groups"])),
            kit.Figure("Scored", before_after(counts, "n_scored_before", "n_scored_after", kit.count)),
            kit.Figure("Mean", before_after(counts, "mean_before", "mean_after", kit.number)),
            kit.Figure(
                "Groups without variance",
                f"+{counts['n_newly_flat']} −{counts['n_no_longer_flat']}",
                sub="new, no longer",
                help="Groups whose rewards become all equal, and groups whose rewards no longer are.",
            ),
        ],
        dense=True,
    )
    if effect["histogram"]:
        kit.plot(histogram(effect["histogram"]), key="policy-histogram", alt="Trajectory rewards before and after")
    if effect["changes"]:
        kit.section("Largest changes")
        html_table(
            ("trajectory", "group", "before", "after"),
            [
                (
                    kit.uid_html(row["trajectory_uid"], length=26),
                    kit.uid_html(row["prompt_uid"], length=20),
                    kit.number(row["before"]),
                    kit.number(row["after"]),
                )
                for row in effect["changes"][:12]
            ],
            numeric=(2, 3),
        )


def out_of(n: int) -> str:
    """``of N``: the total that a count belongs to."""
    return f"of {kit.count(n)}"


def before_after(counts: Mapping[str, Any], before: str, after: str, text: Callable[[Any], str]) -> str:
    """One value, or two with an arrow."""
    one, other = text(counts[before]), text(counts[after])
    return one if one == other else f"{one} → {other}"


def histogram(rows: list[dict[str, Any]]) -> go.Figure:
    """Bins ``{low, high, n_before, n_after}`` as pairs of bars."""
    chart = theme.figure(height=220, showlegend=True, barmode="group")
    middles = [(row["low"] + row["high"]) / 2 for row in rows]
    for name, key, colour in (("before", "n_before", theme.MUTED), ("after", "n_after", theme.GOOD)):
        chart.add_trace(go.Bar(x=middles, y=[row[key] for row in rows], name=name, marker={"color": colour}))
    return chart


def adopt_form(policy: Mapping[str, Any], channel: str) -> None:
    """The form that saves the rule under a name and adopts it."""
    pool = state.service().pool
    with st.form("adopt", border=False), st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.text_input("Name", placeholder="verifier-first", width=240)
        if (
            st.form_submit_button(f"Adopt in {kit.escape_markdown(channel)}", type="primary", icon=":material/gavel:")
            and name.strip()
        ):
            version = pool.rewards.save(name.strip(), policy, author=state.author())
            pool.rewards.adopt(channel, name.strip(), version, author=state.author())
            st.toast(
                f"{kit.escape_markdown(name.strip())} v{version} decides rewards in {kit.escape_markdown(channel)}",
                icon=":material/gavel:",
            )
            st.rerun()
