"""The bench report of a run, or of two runs, as figures, tables and files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.packs import Pack
from core.report import compare, compare_markdown, report, report_markdown
from core.report.markdown import TITLES, UNSCORED, estimate
from core.report.source import runs_of, subject_of
from core.rollouts import Run
from studio import kit, state
from studio.kit.html_tables import html_table
from studio.kit.prices import PROMPT, SAMPLED, price_input, prices_of_url
from studio.kit.url_choices import list_choice, segmented_choice

NOBODY = ""
CHOICES = {"current": "Current rewards", "run": "Scores of the run"}


def report_tab(pack: Pack) -> None:
    """A run of the pack, and a second one to compare with; both are in the URL."""
    service = state.service()
    runs = {run.settings.run: run for run in runs_of(service.rollouts.runs, pack.name)}
    if not runs:
        kit.empty_state(
            "No run yet", "A report needs a run of this pack. Start one on the Rollouts page.", icon="rocket_launch"
        )
        return
    labels = {name: label_of(run) for name, run in runs.items()}
    left, middle, right, far = st.columns([4, 4, 1.6, 1.6], vertical_alignment="bottom")
    with left:
        name = list_choice("Run", labels, "run")
    with middle:
        others = {NOBODY: "nothing", **{other: text for other, text in labels.items() if other != name}}
        other = list_choice("Compare with", others, "with")
    with right:
        price_input("$ per 1M prompt", PROMPT)
    with far:
        price_input("$ per 1M sampled", SAMPLED)
    prices = prices_of_url()
    adopted = (
        service.pool.rewards.all_adopted() if segmented_choice("Rewards", CHOICES, "rewards") == "current" else None
    )
    first = subject_of(runs[name], service.rollouts.packs, service.pool.trajectories, adopted=adopted)
    st.caption(kit.escape_markdown(f"Rewards: {first.about['rewards']}."))
    above = runs[name].settings.solved_above
    if other == NOBODY:
        made = report(first, above=above, prices=prices)
        one_report(made)
        downloads(made, report_markdown(made), f"report-{name}")
        return
    second = subject_of(runs[other], service.rollouts.packs, service.pool.trajectories, adopted=adopted)
    st.caption(kit.escape_markdown(f"Rewards of {other}: {second.about['rewards']}."))
    both = compare(first, second, above=above, prices=prices)
    comparison(both)
    downloads(both, compare_markdown(both), f"report-{name}-{other}")


def label_of(run: Run) -> str:
    """A run as one line of the list."""
    settings = run.settings
    return f"{settings.run}  ·  {settings.pack_version}  ·  {settings.harness}  ·  {settings.model}"


def one_report(made: Mapping[str, Any]) -> None:
    """Figures of the run, then its parts."""
    figures_of(made["total"], made["above"])
    passes(made["total"]["passes"])
    for name, title in TITLES.items():
        if len(made["by"][name]) > 1:
            kit.section(title)
            parts_table(made["by"][name], name)
    kit.section("Tasks")
    config = st.column_config
    st.dataframe(
        made["tasks"],
        hide_index=True,
        row_height=29,
        height=min(420, 36 + 29 * len(made["tasks"])),
        placeholder="",
        column_config={
            "task": config.TextColumn("Task"),
            "category": config.TextColumn("Category"),
            "n_attempts": config.NumberColumn("Attempts"),
            "n_scored": config.NumberColumn("Scored"),
            "n_solved": config.NumberColumn("Solved"),
            "mean": config.NumberColumn("Mean", format="%.3f"),
            "n_prompt_tokens": config.NumberColumn("Prompt tokens", format="localized"),
            "n_response_tokens": config.NumberColumn("Sampled tokens", format="localized"),
            "wall_s": config.NumberColumn("Seconds", format="%.1f", help="Mean duration of an attempt"),
            "cost_usd": config.NumberColumn("Cost", format="$%.4f", help="By the prices above; empty: unknown"),
        },
        key="report-tasks",
    )


def figures_of(total: Mapping[str, Any], above: float) -> None:
    """The row of figures."""
    unscored = ", ".join(f"{n} {name}" for name in UNSCORED if (n := total["outcomes"].get(name)))
    wall = total["wall_s"]
    cost = kit.DASH if total["cost_usd"] is None else f"${total['cost_usd']:.2f}"
    kit.figures(
        [
            kit.Figure("Mean score", *value_of(total["mean"]), help="Mean over tasks of the attempts with a score"),
            kit.Figure("Solved", *value_of(total["solved"]), help=f"Share of attempts with a score above {above:g}"),
            kit.Figure("Missing as 0", *value_of(total["mean_missing_as_zero"]), help="0 where there is no score"),
            kit.Figure("Tasks solved", f"{total['n_correct']} of {total['n_tasks']}", sub=f"mean above {above:g}"),
            kit.Figure(
                "Scored",
                f"{total['n_scored']} of {total['n_attempts']}",
                sub=unscored or "all scored",
                tone="warn" if unscored else "",
            ),
            kit.Figure("Seconds", kit.number(wall["median"]), sub=f"p90 {kit.number(wall['p90'])}"),
            kit.Figure(
                "Tokens",
                kit.compact(total["n_prompt_tokens"]),
                sub=f"{kit.compact(total['n_response_tokens'])} sampled",
            ),
            kit.Figure("Cost", cost, sub="by the prices above"),
        ],
        dense=True,
    )


def value_of(value: Mapping[str, Any] | None) -> tuple[str, str]:
    """A figure's value and its interval."""
    if value is None:
        return kit.DASH, ""
    interval = "" if value["low"] is None else f"{value['low']:.3f} to {value['high']:.3f}"
    return f"{value['value']:.3f}", interval


def passes(rows: Sequence[Mapping[str, Any]]) -> None:
    """pass@k and pass^k."""
    if len(rows) < 2:
        return
    kit.section("pass@k and pass^k", "at least one of k attempts solves the task; all k attempts do")
    html_table(
        ("k", "Tasks", "pass@k", "pass^k"),
        [
            (str(one["k"]), kit.count(0 if one["any"] is None else one["any"]["n_tasks"]), estimate(one["any"]),
             estimate(one["all"]))
            for one in rows
        ],
        numeric=(0, 1, 2, 3),
    )  # fmt: skip


def parts_table(parts: Sequence[Mapping[str, Any]], name: str) -> None:
    """One row a part."""
    html_table(
        (name.replace("_", " ").capitalize(), "Tasks", "Attempts", "Scored", "Mean", "Solved", "Seconds"),
        [
            (kit.escape(part["name"]), kit.count(part["n_tasks"]), kit.count(part["n_attempts"]),
             kit.count(part["n_scored"]), estimate(part["mean"]), estimate(part["solved"]),
             kit.number(part["wall_s"]["mean"]))
            for part in parts
        ],
        numeric=(1, 2, 3, 4, 5, 6),
    )  # fmt: skip


def comparison(made: Mapping[str, Any]) -> None:
    """Two runs and their difference, task by task."""
    for one in (made["first"], made["second"]):
        kit.section(one["run"])
        figures_of(one["total"], one["above"])
    pair = made["paired"]
    kit.section("Difference", "second minus first, on the tasks that have a score in both")
    if pair is None:
        st.caption("No task has a score in both runs.")
        return
    parts = [{"name": "all", "paired": pair}, *(made["by_category"] if len(made["by_category"]) > 1 else [])]
    html_table(
        ("", "tasks", "difference", "better", "equal", "worse", "p, t-test", "p, permutation"),
        [
            (kit.escape(part["name"]), kit.count(part["paired"]["difference"]["n_tasks"]),
             estimate(part["paired"]["difference"]), kit.count(part["paired"]["better"]),
             kit.count(part["paired"]["equal"]), kit.count(part["paired"]["worse"]),
             p_text(part["paired"]["t_p"]), p_text(part["paired"]["permutation_p"]))
            for part in parts
        ],
        numeric=(1, 2, 3, 4, 5, 6, 7),
    )  # fmt: skip
    only = made["n_tasks_only_first"], made["n_tasks_only_second"]
    st.caption(f"Tasks with a score in one run only: {only[0]} and {only[1]}. They are not compared.")


def p_text(p: float | None) -> str:
    """A p-value; small ones as a bound, since a p-value is never 0."""
    return "&lt; 0.001" if p is not None and p < 0.001 else kit.number(p)


def downloads(made: Mapping[str, Any], text: str, name: str) -> None:
    """The report as files."""
    with st.container(horizontal=True):
        st.download_button(
            "JSON", json.dumps(made, indent=2), f"{name}.json", "application/json", icon=":material/download:"
        )
        st.download_button("Markdown", text, f"{name}.md", "text/markdown", icon=":material/download:")
