"""Agreement of two reviewers: Cohen's kappa, confusion matrix, disagreements."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.pool.agreement import KINDS, LEVELS
from core.types import View
from studio import kit, state
from studio.kit.html_tables import html_table
from studio.kit.url_choices import list_choice

SHOWN = 50


def reviewers_tab(view: View) -> None:
    """Choice of kind, level and two reviewers; their confusion matrix and their disagreements."""
    pool = state.service().pool
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        kind = list_choice("Label", {one: one for one in KINDS}, "kind", width=150)
        level = list_choice("Level", {one: one for one in LEVELS}, "of", default="trajectory", width=150)
        reviewers = pool.agreement.reviewers(kind, level)
        names = [row["author"] for row in reviewers]
        if len(names) > 1:
            a = st.selectbox("Reviewer", names, key=f"agree-a-{kind}-{level}", width=200)
            rest = [name for name in names if name != a]
            b = st.selectbox("and", rest, key=f"agree-b-{kind}-{level}-{a}", width=200)
    if len(names) < 2:
        who = "No reviewer has" if not names else f"Only {names[0]} has"
        kit.empty_state("Agreement needs two reviewers", f"{who} set this label so far.", icon="group")
        return
    agreement = pool.agreement.between(a, b, kind, level, view)
    kit.figures(
        [
            kit.Figure("Both labelled", kit.count(agreement["n"])),
            kit.Figure("Agree", kit.percent(agreement["n_agree"], agreement["n"]), sub=kit.count(agreement["n_agree"])),
            kit.Figure(
                "Kappa (Cohen)",
                kit.number(agreement["kappa"]),
                help="Agreement beyond chance: 1 is perfect, 0 is chance. Unknown if both used one label only",
            ),
        ],
        dense=True,
    )
    left, right = st.columns([4, 6], gap="medium")
    with left:
        kit.section("Labels", f"rows {a}, columns {b}")
        confusion_matrix(agreement)
    with right:
        disagreement_list(view, kind, level, [a, b])


def confusion_matrix(agreement: dict[str, Any]) -> None:
    """Draw counts of each pair of labels."""
    if not agreement["labels"]:
        st.caption("No item labelled by both matches the filters.")
        return
    rows = []
    for label, counts in zip(agreement["labels"], agreement["matrix"], strict=True):
        cells = [
            f"<b>{n}</b>" if label == other else kit.escape(n)
            for other, n in zip(agreement["labels"], counts, strict=True)
        ]
        rows.append((kit.escape(label), *cells))
    html_table(("", *map(str, agreement["labels"])), rows, numeric=range(1, 1 + len(agreement["labels"])))


def disagreement_list(view: View, kind: str, level: str, authors: list[str]) -> None:
    """Draw the items that the two labelled differently, each a link to its review."""
    disagreements = state.service().pool.agreement.disagreements(kind, level, authors=authors, view=view, limit=SHOWN)
    kit.section(
        "Disagreements", f"the newest {SHOWN}" if len(disagreements) == SHOWN else kit.count(len(disagreements))
    )
    if not disagreements:
        st.caption("No disagreements.")
        return
    for row in disagreements:
        uid = row["step_uid"] if level == "step" else row["trajectory_uid"]
        values = " · ".join(f"{kit.escape(one['author'])} <b>{kit.escape(one['value'])}</b>" for one in row["opinions"])
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            if st.button(
                kit.escape_markdown(kit.short_uid(uid, 30)),
                key=f"torn-{uid}",
                type="tertiary",
                icon=":material/rate_review:",
            ):
                state.goto("curate", tab="review", level=level, order="disagreeing", item=uid)
            st.html(f'<div class="cs-note">{values}</div>', width="content")
