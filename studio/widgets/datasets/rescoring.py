"""Re-scoring: start one on a channel, see old and new rewards side by side, adopt or discard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from core.errors import InvalidInput
from core.rewards.policy import COMBINATIONS, Missing
from core.types import View
from studio import kit, state
from studio.kit.html_tables import html_table
from studio.kit.url_choices import list_choice

VERIFIERS = {"task": "each task's own check", "rubric": "each task's rubric, by a judge", "check": "one check for all"}
FIRST = "first"
HOW = {FIRST: "the new rewards first", **{name: name.replace("_", " ") for name in COMBINATIONS}}
MISSING: Mapping[Missing, str] = {"unscored": "without one of both: unscored", "skip": "without one of both: the other"}
REFRESH_S = 2.0


def rescore_tab() -> None:
    """The form that starts a re-scoring, and the chosen one."""
    host = state.service().rescoring
    listed = host.all()
    left, right = st.columns([3, 7], gap="medium")
    with left:
        kit.section("Score again", "uses the workspaces stored by rollouts")
        start_form(len(listed))
    with right:
        if not listed:
            kit.empty_state(
                "No re-scoring yet",
                "Score a channel with another verifier. Rewards change only when you adopt the result.",
                icon="rule",
            )
            return
        names = {one["name"]: one["name"] for one in listed}
        name = list_choice("Re-scoring", names, "rescore", default=listed[0]["name"])
        shown(name)


def start_form(n_before: int) -> None:
    """Verifier, channel, repeats and judge of a new re-scoring."""
    pool = state.service().pool
    channels = [str(value) for value, _ in pool.stats.facets(View(), ["channel"])["channel"]] or ["train"]
    with st.form("rescore", border=False):
        name = st.text_input("Name", value=f"rescore-{n_before + 1}")
        channel = st.selectbox("Channel", channels, key="rescore-channel")
        verifier = st.selectbox("Verifier", list(VERIFIERS), format_func=VERIFIERS.__getitem__)
        check = st.text_area(
            "Check as JSON", placeholder='{"verifier": "final_answer", "answer": "42"}', help="For “one check for all”"
        )
        repeats = st.number_input(
            "Repeats", min_value=1, max_value=100, value=1, help="More than one shows the variance"
        )
        model = st.text_input("Judge model", help="For rubrics. Its calls are captured as auxiliary")
        max_calls = st.number_input("Judge budget, calls", min_value=0, value=200)
        if st.form_submit_button("Score again", type="primary", icon=":material/rule:"):
            with kit.error_boundary():
                state.service().rescoring.start(
                    {
                        "name": name.strip(),
                        "view": {"filters": {"channel": channel}},
                        "verifier": parse_check(check) if verifier == "check" else verifier,
                        "repeats": int(repeats),
                        "judge": {"model": model.strip(), "max_calls": int(max_calls)} if model.strip() else None,
                        "author": state.author(),
                    }
                )
                st.query_params["rescore"] = name.strip()
                st.rerun()


def parse_check(text: str) -> dict[str, Any]:
    """A check from its JSON.

    Raises:
        InvalidInput: it is no JSON object.
    """
    try:
        check = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the check is not JSON: {error}", field="verifier") from None
    if not isinstance(check, dict):
        raise InvalidInput("the check is not a JSON object", field="verifier", hint='{"verifier": "...", ...}')
    return check


def shown(name: str) -> None:
    """One re-scoring; while it runs, drawn anew every two seconds."""
    running = state.service().rescoring.running(name)

    @kit.live(REFRESH_S if running else None)
    def body() -> None:
        about = state.service().rescoring.show(name)
        if running and not about["running"]:
            st.rerun()
        progress(about)
        comparison(about["comparison"])
        reliability(about["reliability"])

    body()
    decide(name)


def progress(about: Mapping[str, Any]) -> None:
    """How far it is, what the judge has cost, and why it ended."""
    spending = about["spending"] or {}
    total = about["n_total"]
    items = [
        kit.Figure("Scores", kit.count(about["n_done"]), sub="" if total is None else f"of {kit.count(total)}"),
        kit.Figure("State", "running" if about["running"] else "adopted" if about["adopted"] else "done"),
    ]
    if spending:
        cost = spending.get("cost_usd")
        items.append(
            kit.Figure(
                "Judge calls",
                kit.count(spending["n_calls"]),
                sub=f"{kit.count(spending['n_cached'])} stored" + (f", ${cost:.4f}" if cost else ""),
            )
        )
    kit.figures(items, dense=True)
    if about["error"]:
        st.error(kit.escape_markdown(about["error"]))


def comparison(compared: Mapping[str, Any]) -> None:
    """Old and new rewards side by side."""
    kit.section("Old and new rewards", "nothing changes until you adopt the result")
    kit.figures(
        [
            kit.Figure("Equal", kit.count(compared["n_equal"]), sub=f"of {kit.count(compared['n_both'])} with both"),
            kit.Figure(
                "Mean",
                f"{kit.number(compared['mean_old'])} → {kit.number(compared['mean_new'])}",
                sub="of those with both",
            ),
            kit.Figure(
                "Crossed 0.5",
                f"+{compared['n_now_solved']} −{compared['n_no_longer_solved']}",
                sub="up, down",
            ),
            kit.Figure("Agreement", kit.percent(compared["agreement"]), sub=f"kappa {kit.number(compared['kappa'])}"),
            kit.Figure(
                "Scored",
                f"+{compared['n_newly_scored']} −{compared['n_no_longer_scored']}",
                sub="new, no longer",
            ),
        ],
        dense=True,
    )
    outcomes = {name: n for name, n in compared["outcomes"].items() if name != "scored"}
    if outcomes:
        st.caption("Without a score: " + ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in outcomes.items()))
    if compared["changes"]:
        html_table(
            ("Trajectory", "Old", "New", "Crossed 0.5"),
            [
                (
                    kit.uid_html(
                        row["trajectory_uid"],
                        href=state.link("inspect", trajectory=row["trajectory_uid"]),
                        length=30,
                    ),
                    kit.number(row["old"]),
                    kit.number(row["new"]),
                    "yes" if row["flips"] else "",
                )
                for row in compared["changes"][:12]
            ],
            numeric=(1, 2),
        )


def reliability(report: Mapping[str, Any]) -> None:
    """Variance over repeats, and agreement with people."""
    human = report["human"]
    if not report["n"] and not human["n"]:
        return
    kit.section("Reliability", "equal repeats, and agreement with labels of people")
    kit.figures(
        [
            kit.Figure("Repeated", kit.count(report["n"]), sub="trajectories"),
            kit.Figure("Mean variance", kit.number(report["mean_variance"], 4)),
            kit.Figure("Unstable", kit.count(report["n_unstable"]), sub=f"{kit.count(report['n_flipping'])} cross 0.5"),
            kit.Figure(
                "Agreement with people",
                kit.percent(human["agreement"]),
                sub=f"on {kit.count(human['n'])} labelled trajectories",
            ),
        ],
        dense=True,
    )


def decide(name: str) -> None:
    """Adopt with a combination, or discard."""
    host = state.service().rescoring
    about = next((one for one in host.all() if one["name"] == name), None)
    if about is None:
        return
    if about["adopted"]:
        policies = ", ".join(f"{channel}: {policy}" for channel, policy in about["adopted"]["policies"].items())
        st.caption(kit.escape_markdown(f"Adopted as the reward policy of {policies}."))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if not about["adopted"] and not about["running"]:
            how = st.selectbox("Reward", list(HOW), format_func=HOW.__getitem__, width=240, key="rescore-how")
            combine, missing = None if how == FIRST else how, next(iter(MISSING))
            if combine is not None:
                missing = st.selectbox(
                    "Missing", list(MISSING), format_func=MISSING.__getitem__, width=260, key="rescore-missing",
                    help="A trajectory of the channel that has only the check's reward, such as at a task without a "
                    "rubric, or only the new one",
                )  # fmt: skip
            if st.button("Adopt", type="primary", icon=":material/gavel:"):
                with kit.error_boundary():
                    host.adopt(name, author=state.author(), combine=combine, missing=missing)
                    st.rerun()
        if about["running"] and st.button("Stop", icon=":material/stop:"):
            host.stop(name)
            st.rerun()
        if st.button("Discard", icon=":material/delete:"):
            host.discard(name)
            st.query_params.pop("rescore", None)
            st.rerun()
