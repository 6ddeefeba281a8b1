"""Freeze what the filters match under a name, redacted by rules if wanted."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.batch.datasets import freeze_version
from core.batch.recipe import Recipe
from core.batch.redact import texts_of
from core.pool.redaction.rules import PATTERNS, SECRETS, Redaction, parse_redaction
from core.types import View
from studio import kit, state
from studio.kit.filters import active_filters, filter_panel
from studio.kit.url_choices import pick
from studio.widgets.plans.group_credit import group_recipe
from studio.widgets.plans.planning import counts_now, plan_counts

ACTIONS = {"mask": "Mask the tokens", "drop": "Drop the step"}
UNREADABLE = {"drop": "Drop it", "keep": "Keep it"}


def freeze_tab() -> None:
    """Filters on the left; what would be frozen, its name and its rules on the right."""
    service = state.service()
    left, right = st.columns([2.1, 9], gap="medium")
    with left, st.container(key="facet-column"):
        view = filter_panel("datasets")
    if view is None:
        return
    with right:
        active_filters(view, key="datasets")
        channels = [str(value) for value, _ in service.pool.stats.facets(View(), ["channel"])["channel"]] or ["train"]
        channel = pick("Channel", {one: one for one in channels}, "into", width=200)
        recipe, origin = group_recipe(channel)
        counts = plan_counts(counts_now(view, recipe))
        n_steps = service.pool.steps.count(View({**view.filters, "channel": channel}, view.where))
        kit.figures(
            [
                kit.Figure(
                    "Steps frozen", kit.count(n_steps), help="All that match, with their labels as they are now"
                ),
                kit.Figure("Ready groups", kit.count(counts["groups"]), sub=f"by {recipe.estimator.title}, {origin}"),
                kit.Figure("Ready trajectories", kit.count(counts["trajectories"])),
                kit.Figure("Ready tokens", kit.compact(counts["tokens"])),
            ],
            dense=True,
        )
        form(view, recipe, n_steps)


def form(view: View, recipe: Recipe, n_steps: int) -> None:
    """Name, parent, note and redaction; the button freezes."""
    pool = state.service().pool
    names = [head["name"] for head in pool.versions.all()]
    with st.form("freeze", border=True):
        first, second, third = st.columns([3, 3, 4])
        name = first.text_input("Name", placeholder="sales-agents-v1")
        parent = second.selectbox("Follows", [None, *names], format_func=lambda one: one or "nothing")
        note = third.text_input("Note", placeholder="what it is for")
        st.html('<div class="cs-said">Redaction: what must not be in it. Tokens stay aligned; hits are counted.</div>')
        rules = st.multiselect(
            "Look for", list(PATTERNS), placeholder="nothing", help=f"Secrets: {', '.join(SECRETS)}", key="freeze-rules"
        )
        left, middle, right = st.columns([4, 3, 3])
        own = left.text_input("Own pattern (regex)", placeholder=r"ACME-\d+")
        action = middle.selectbox("A step with a hit", list(ACTIONS), format_func=ACTIONS.__getitem__)
        unreadable = right.selectbox(
            "A step nobody can read", list(UNREADABLE), format_func=UNREADABLE.__getitem__, help="Its text is not known"
        )
        pressed = st.form_submit_button("Freeze", type="primary", icon=":material/ac_unit:", disabled=n_steps == 0)
    if pressed:
        asked: dict[str, Any] = {"action": action, "unreadable": unreadable}
        if rules:
            asked["rules"] = rules
        if own.strip():
            asked["patterns"] = {"own": own.strip()}
        freeze(name, view, recipe, parent, note, parse_redaction(asked if rules or own.strip() else None))


def freeze(name: str, view: View, recipe: Recipe, parent: str | None, note: str, redaction: Redaction | None) -> None:
    """Freeze, and open what came of it."""
    from core.api.data import templates

    service = state.service()
    bar = st.progress(0.0, "Freezing…")

    def report(done: int, total: int) -> None:
        bar.progress(done / total if total else 1.0, f"{done:,} of {total:,}")

    head = freeze_version(
        service.pool,
        name.strip(),
        view,
        recipe,
        author=state.author(),
        parent=parent,
        note=note.strip() or None,
        redaction=redaction,
        texts=texts_of(service.settings.local_model_dir),
        templates=templates(service.settings),
        progress=report,
    )
    st.toast(f"Frozen: {kit.verbatim(head['name'])}, {head['n_steps']:,} steps", icon=":material/ac_unit:")
    state.set_view(View())
    state.set_query(tab=None, version=head["name"])
    st.rerun()
