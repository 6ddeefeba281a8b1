"""A dry run of a redaction: what freezing would mask and drop, and every text that a rule matched."""

from __future__ import annotations

import json
from dataclasses import dataclass

import streamlit as st

from core.batch.datasets import dry_run
from core.batch.recipe import Recipe
from core.batch.redact import Match, Redacted, texts_of
from core.pool.redaction.rules import Redaction
from core.types import View
from studio import kit, state
from studio.kit.data_tables import page_from_query, pagination
from studio.kit.html_tables import html_table
from studio.kit.url_choices import list_choice

KEPT = "redaction-dry-run"
"""Key of the session state."""
PAGE = 50
SHOWN_CHARS = 160
ANY = "any"
OUTCOMES = {
    "hit": "a step with a match",
    "unreadable": "its text is unknown",
    "unlocated": "the match is not found in its tokens",
    "identifier": "a match in a name",
    "nothing_left": "every sampled token would be masked",
}
"""Why a step is dropped -> words."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result, kept in the session, with what it was run on."""

    of: str
    result: Redacted


def inputs(view: View, recipe: Recipe, redaction: Redaction) -> str:
    """What a dry run depends on, apart from the pool's content, as text."""
    return json.dumps([dict(view.filters), view.where, recipe.channel, redaction.to_json()], sort_keys=True)


def run(view: View, recipe: Recipe, redaction: Redaction) -> None:
    """Run it with a progress bar, and keep the result."""
    service = state.service()
    bar = st.progress(0.0, "Searching…")

    def report(done: int, total: int) -> None:
        bar.progress(done / total if total else 1.0, f"{done:,} of {total:,} trajectories")

    texts = texts_of(service.settings.local_model_dir)
    result = dry_run(service.pool, view, recipe, redaction, texts=texts, progress=report)
    bar.empty()
    st.session_state[KEPT] = DryRun(inputs(view, recipe, redaction), result)
    state.set_query(page=None)


def show(view: View, recipe: Recipe) -> None:
    """The last dry run, if it was on this view and channel: counts, then the matches with a filter and pages."""
    kept: DryRun | None = st.session_state.get(KEPT)
    if kept is None or json.loads(kept.of)[:3] != [dict(view.filters), view.where, recipe.channel]:
        return
    result, rules = kept.result, json.loads(kept.of)[3]
    word = "masked" if rules["action"] == "mask" else "dropped"
    kit.section("Dry run", f"nothing is stored; a step with a match is {word}; rules: {', '.join(rules['rules'])}")
    kit.figures(
        [
            kit.Figure("Distinct matches", kit.count(len(result.matches)), tone="warn" if result.matches else ""),
            kit.Figure("Steps masked", kit.count(result.n_masked_steps)),
            kit.Figure("Tokens masked", kit.count(result.n_masked_tokens)),
            kit.Figure("Steps dropped", kit.count(len(result.dropped)), tone="bad" if result.dropped else ""),
            kit.Figure(
                "Tokens not read",
                kit.count(result.n_unread_tokens),
                sub="steps",
                help="Steps whose tokenizer is not available here; their texts are searched",
            ),
        ],
        dense=True,
    )
    reasons = result.report()["n_steps_dropped"]
    if reasons:
        listed = ", ".join(f"{kit.count(n)}: {OUTCOMES[reason]}" for reason, n in reasons.items())
        st.html(kit.caption_html(f"Dropped steps by reason. {listed}."))
    if not result.matches:
        st.caption("No rule matches a text of these steps.")
        return
    matches(result)


def matches(result: Redacted) -> None:
    """The matched texts, the most frequent first."""
    by_rule = sorted({rule for rule, _ in result.matches})
    chosen = list_choice("Rule", {ANY: "any rule", **{name: name for name in by_rule}}, "rule", width=180)
    listed = sorted(
        ((rule, text, match) for (rule, text), match in result.matches.items() if chosen in (ANY, rule)),
        key=lambda one: (-one[2].n_steps, one[0], one[1]),
    )
    first = (min(page_from_query(), max(1, -(-len(listed) // PAGE))) - 1) * PAGE
    html_table(
        ("Rule", "Matched text", "In", "Steps", "Trajectories", "First in"),
        [match_cells(*one) for one in listed[first : first + PAGE]],
        numeric=(3, 4),
        wide=(1,),
    )
    pagination(len(listed), key=f"matches-{chosen}", size=PAGE, noun="matches")


def match_cells(rule: str, text: str, match: Match) -> tuple[str, ...]:
    """One row, as HTML."""
    shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters)"
    link = state.link("inspect", step=match.step_uid)
    return (
        kit.escape(rule),
        f"<code>{kit.escape(shown)}</code>",
        kit.escape(", ".join(sorted(match.places))),
        kit.count(match.n_steps),
        kit.count(match.n_trajectories),
        f'<a href="{kit.escape(link)}" target="_self">{kit.escape(kit.short_uid(match.trajectory_uid, 24))}</a>',
    )
