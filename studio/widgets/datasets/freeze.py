"""Freezes the steps that match the filters as a dataset version, optionally redacted."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.batch.datasets import freeze_version
from core.batch.recipe import Recipe
from core.batch.redact import texts_of
from core.errors import InvalidInput
from core.pool.redaction.rules import PATTERNS, SECRETS, Redaction, parse_redaction
from core.types import View
from studio import kit, state
from studio.kit.filters import active_filters, filter_panel
from studio.kit.url_choices import list_choice
from studio.widgets.datasets import dry_run
from studio.widgets.datasets.freeze_job import FreezeJob, show_freezing
from studio.widgets.plans.current_plan import counts_now, plan_counts
from studio.widgets.plans.group_credit import group_recipe

ACTIONS = {"mask": "Mask the tokens", "drop": "Drop the step"}
JOB = "freeze-job"
"""Key of the session state."""
UNREADABLE = {"drop": "Drop the step", "keep": "Keep the step"}


def freeze_tab() -> None:
    """Filters on the left; counts, name and redaction rules on the right."""
    service = state.service()
    left, right = st.columns([2.1, 9], gap="medium")
    with left, st.container(key="facet-column"):
        view = filter_panel("datasets")
    if view is None:
        return
    with right:
        active_filters(view, key="datasets")
        channels = [str(value) for value, _ in service.pool.stats.facets(View(), ["channel"])["channel"]] or ["train"]
        channel = list_choice("Channel", {one: one for one in channels}, "into", width=200)
        recipe, origin = group_recipe(channel)
        counts = plan_counts(counts_now(view, recipe))
        n_steps = service.pool.steps.count(View({**view.filters, "channel": channel}, view.where))
        kit.figures(
            [
                kit.Figure("Steps frozen", kit.count(n_steps), help="All matching steps, with their current labels"),
                kit.Figure(
                    "Groups in the plan", kit.count(counts["groups"]), sub=f"by {recipe.estimator.title}, {origin}"
                ),
                kit.Figure("Trajectories", kit.count(counts["trajectories"])),
                kit.Figure("Tokens", kit.compact(counts["tokens"])),
            ],
            dense=True,
        )
        freeze_form(view, recipe, n_steps)


def freeze_form(view: View, recipe: Recipe, n_steps: int) -> None:
    """The form: name, parent, note, redaction, and the button that freezes."""
    pool = state.service().pool
    names = [head["name"] for head in pool.versions.all()]
    with st.form("freeze", border=True):
        first, second, third = st.columns([3, 3, 4])
        name = first.text_input("Name", placeholder="sales-agents-v1")
        parent = second.selectbox("Parent version", [None, *names], format_func=lambda one: one or "none")
        note = third.text_input("Note", placeholder="purpose")
        st.html('<div class="cs-note">Redaction: text to remove. Tokens stay aligned; matches are counted.</div>')
        rules = st.multiselect(
            "Redact", list(PATTERNS), placeholder="nothing", help=f"Secrets: {', '.join(SECRETS)}", key="freeze-rules"
        )
        left, middle, right = st.columns([4, 3, 3])
        own_pattern = left.text_input("Custom pattern (regex)", placeholder=r"ACME-\d+")
        action = middle.selectbox("If a step has a match", list(ACTIONS), format_func=ACTIONS.__getitem__)
        unreadable = right.selectbox(
            "If a step's text is unknown",
            list(UNREADABLE),
            format_func=UNREADABLE.__getitem__,
            help="The text is unknown when the tokenizer of the step is not available",
        )
        with st.container(horizontal=True, gap="small"):
            pressed = st.form_submit_button(
                "Freeze", type="primary", icon=":material/ac_unit:", disabled=n_steps == 0 or is_freezing()
            )
            tried = st.form_submit_button(
                "Try the redaction",
                icon=":material/search:",
                disabled=n_steps == 0,
                help="Lists what the rules match; nothing is stored",
            )
    if pressed or tried:
        rules_json: dict[str, Any] = {"action": action, "unreadable": unreadable}
        if rules:
            rules_json["rules"] = rules
        if own_pattern.strip():
            rules_json["patterns"] = {"own": own_pattern.strip()}
        redaction = parse_redaction(rules_json if rules or own_pattern.strip() else None)
        if pressed:
            freeze(name, view, recipe, parent, note, redaction)
        elif redaction is None:
            raise InvalidInput("A dry run needs a rule.", field="redact", hint="Choose rules, or enter a pattern.")
        else:
            dry_run.run(view, recipe, redaction)
    if (job := st.session_state.get(JOB)) is not None:
        show_frozen(job)
    dry_run.show(view, recipe)


def is_freezing() -> bool:
    """Whether this browser's last version is being frozen."""
    job: FreezeJob | None = st.session_state.get(JOB)
    return job is not None and job.running


def freeze(name: str, view: View, recipe: Recipe, parent: str | None, note: str, redaction: Redaction | None) -> None:
    """Start to freeze a version, beside the page."""
    from core.api.data import templates

    service, author = state.service(), state.author()
    st.session_state[JOB] = FreezeJob(
        lambda report: freeze_version(
            service.pool,
            name.strip(),
            view,
            recipe,
            author=author,
            parent=parent,
            note=note.strip() or None,
            redaction=redaction,
            texts=texts_of(service.settings.local_model_dir),
            templates=templates(service.settings),
            progress=report,
        )
    )
    if is_freezing():
        # The button was drawn before the job began.
        st.rerun()


def show_frozen(job: FreezeJob) -> None:
    """The job's progress or error; when its version is stored, open it."""
    if (head := job.head) is None:
        show_freezing(job)
        return
    del st.session_state[JOB]
    st.toast(f"Frozen: {kit.escape_markdown(head['name'])}, {head['n_steps']:,} steps", icon=":material/ac_unit:")
    state.set_view(View())
    state.set_query(tab=None, version=head["name"])
    st.rerun()
