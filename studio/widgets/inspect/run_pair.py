"""Two runs side by side, measure by measure. Their names are in the URL: ``?runs=…&runs=…``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import streamlit as st

from core.report.estimate import Estimate
from core.report.runs import MEASURES, Difference, RunComparison, compare_runs
from core.scoring.prices import Price, price_of
from core.types import View
from studio import kit, state
from studio.kit.filters import active_filters, with_filter
from studio.kit.html_tables import dot_label, html_table
from studio.kit.prices import PROMPT, SAMPLED, price_input, prices_of_url


def dollars(value: float) -> str:
    """US dollars with three significant digits; the calls of an attempt may cost a fraction of a cent."""
    return (
        f"{'-' if value < 0 else ''}${np.format_float_positional(abs(value), precision=3, fractional=False, trim='-')}"
    )


FORMATS: dict[str, Callable[[float], str]] = {
    "success_rate": lambda value: f"{100 * value:.1f} %",
    "error_rate": lambda value: f"{100 * value:.1f} %",
    "n_tokens": lambda value: f"{value:,.0f}",
    "cost_usd": dollars,
}


def run_pair_page(runs: Sequence[str]) -> None:
    """Draw the comparison of the two runs in the URL, over the trajectories of the other filters."""
    crumbs = st.container(horizontal=True, vertical_alignment="center", gap="small", key="crumbs")
    if crumbs.button("All runs", icon=":material/arrow_back:", key="back", type="tertiary"):
        state.set_query(runs=None, level="runs")
        st.rerun()
    if len(runs) != 2:
        kit.empty_state("Select two runs", "Select two runs in the list.", icon="compare")
        return
    if crumbs.button("Swap", icon=":material/swap_horiz:", key="swap", type="tertiary"):
        state.set_query(runs=[runs[1], runs[0]])
        st.rerun()
    view = with_filter(state.view_from_query(), "run", None)
    active_filters(view, key="runs")
    prices = prices_of_url()
    given = None if prices is None else Price(prices.prompt / 1e6, prices.response / 1e6)
    made = compare_runs(
        state.service().pool.runs, runs[0], runs[1], view=view, price=price_of if given is None else lambda _: given
    )
    kit.section("Two runs", "mean over tasks, each task once; brackets: 95 % intervals")
    comparison_table(made, runs)
    st.caption(basis(made))
    cost = next(row for row in made.rows if row.measure == "cost_usd")
    if cost.first is None or cost.second is None or given is not None:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            price_input("$ per 1M prompt tokens", PROMPT)
            price_input("$ per 1M sampled tokens", SAMPLED)
        if given is None:
            st.caption("Cost is unknown because a model has no list price. Enter prices to see it.")


def comparison_table(made: RunComparison, runs: Sequence[str]) -> None:
    """A row per measure; the runs' names link to their trajectories."""
    names = [f"<b>{name_link(run)}</b>" for run in runs]
    counts = [
        f"{kit.counted(n, 'attempt')} at {kit.counted(m, 'task')}"
        for n, m in zip(made.n_attempts, made.n_tasks, strict=True)
    ]
    rows = [("", *(f"{name}<br>{kit.escape(text)}" for name, text in zip(names, counts, strict=True)), "", "", "")]
    html_table(
        ("", "First run", "Second run", "Difference", "95 % band", ""),
        [*rows, *(line(row) for row in made.rows)],
        numeric=(1, 2, 3, 4),
    )


def name_link(run: str) -> str:
    """A run's name as a link to its trajectories, as HTML."""
    address = state.link("inspect", **state.view_to_query(View({"run": run})))
    return f'<a href="{kit.escape(address)}" target="_self">{kit.escape(run)}</a>'


def line(row: Difference) -> tuple[str, ...]:
    """One measure as a row of the table, as HTML."""
    measure = MEASURES[row.measure]
    text = FORMATS.get(row.measure, kit.number)
    difference = row.difference
    band = (
        kit.DASH
        if difference is None or difference.low is None or difference.high is None
        else f"{signed(difference.low, text)} to {signed(difference.high, text)}"
    )
    return (
        f'<span title="{kit.escape(measure.doc)}">{kit.escape(measure.title)}</span>',
        with_interval(row.first, text),
        with_interval(row.second, text),
        kit.DASH if difference is None else signed(difference.value, text),
        band,
        verdict(row),
    )


def with_interval(value: Estimate | None, text: Callable[[float], str]) -> str:
    """A mean with its interval in brackets, as HTML."""
    if value is None:
        return kit.DASH
    if value.low is None or value.high is None:
        return text(value.value)
    return f'{text(value.value)} <span class="cs-quiet">[{text(value.low)}, {text(value.high)}]</span>'


def signed(value: float, text: Callable[[float], str]) -> str:
    """A difference with its sign; that of two percentages is in percentage points."""
    shown = text(value).replace(" %", " points")
    return f"+{shown}" if value > 0 else shown


def verdict(row: Difference) -> str:
    """Whether the band leaves 0 out, and on which side, as HTML."""
    one = row.difference
    if one is None:
        return ""
    if one.low is None or one.high is None:
        return dot_label("no band", "muted")
    if one.low <= 0 <= one.high:
        return dot_label("not clear", "muted")
    better = MEASURES[row.measure].better * (1 if one.value > 0 else -1)
    return dot_label("higher" if one.value > 0 else "lower", "good" if better > 0 else "bad" if better < 0 else "")


def basis(made: RunComparison) -> str:
    """What the differences are taken over, in one sentence."""
    if any(row.paired for row in made.rows):
        only = tuple(n - made.n_common for n in made.n_tasks)
        return (
            f"Differences are second minus first on the {made.n_common} tasks of both runs, task by task; tasks of one "
            f"run only ({only[0]} and {only[1]}) are left out of them. Measures without two such tasks compare means."
        )
    return "The runs share fewer than two tasks, so the differences compare two independent means (Welch's interval)."
