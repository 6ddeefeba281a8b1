"""The funnel of a plan: what each reason excludes, and what is left after it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.batch.plan import Plan
from studio import kit, state


def funnel_table(plan: Plan, captured: tuple[int, int, int] | None = None) -> None:
    """Draw a row per exclusion reason, with a button that opens its steps in Inspect.

    ``captured``: groups, trajectories and steps of all channels, shown as a first row.
    """
    start = plan.remaining[0]
    n_total = start[3] if captured is None else captured[2]
    kit.section(
        "Funnel", f"{kit.count(start[3])} candidate steps of channel {plan.recipe.channel}; each is excluded once"
    )
    left = {row[0]: row for row in plan.remaining}
    widths = [5, 0.9, 1.3, 0.9, 2.6, 1]
    head = st.columns(widths, gap="small")
    for cell, text in zip(head, ("Reason", "Groups", "Trajectories", "Steps", "Steps left", ""), strict=True):
        cell.caption(text)
    if captured is not None:
        funnel_row(widths, "Captured, all channels", *captured, captured[2], n_total)
    funnel_row(widths, "Candidates", start[1], start[2], start[3], start[3], n_total)
    for item in plan.excluded:
        remaining = left[item.reason][3]
        cells = funnel_row(widths, item.label, -item.n_groups, -item.n_trajectories, -item.n_steps, remaining, n_total)
        if cells[5].button("Rows", key=f"rows-{item.reason}", help=f"The {kit.count(item.n_steps)} steps in Inspect"):
            state.goto("inspect", level="steps", **state.view_to_query(item.view))
        if item.view_is_partial:
            st.html(
                kit.caption_html(
                    f"The rows of {item.reason} show only its first trajectories: there are too many for a link."
                )
            )
    counts = plan.remaining[-1]
    funnel_row(widths, "In the plan", counts[1], counts[2], counts[3], counts[3], n_total, strong=True)


def funnel_row(
    widths: list[float],
    label: str,
    groups: int,
    trajectories: int,
    steps: int,
    n_left: int,
    n_total: int,
    strong: bool = False,
) -> list[Any]:
    """Draw one stage: its counts, and a bar of what is left."""
    cells = st.columns(widths, gap="small", vertical_alignment="center")
    weight = 650 if strong else 400
    cells[0].html(f'<span style="font-weight:{weight}">{kit.escape(label)}</span>')
    for cell, value in zip(cells[1:4], (groups, trajectories, steps), strict=True):
        text = kit.count(value).replace("-", "−") if value else "0"
        cell.html(f'<span style="font-weight:{weight};font-variant-numeric:tabular-nums">{text}</span>')
    share = 100 * n_left / n_total if n_total else 0
    cells[4].html(
        '<div class="cs-bars" style="grid-template-columns:1fr auto"><div class="track">'
        f'<i style="width:{share:.2f}%"></i></div><div class="n">{kit.count(n_left)}</div></div>'
    )
    return cells
