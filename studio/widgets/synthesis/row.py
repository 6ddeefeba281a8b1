"""One row of a stage: why it failed, what can be done about it, its product, and the form that changes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from core.errors import InvalidInput
from core.synthesis import SynthesisRun
from core.synthesis.rows import ACCEPTED, REJECTED, Row
from studio import kit, state
from studio.widgets.synthesis.product import show_product


def row_detail(run: SynthesisRun, stage: str, line: Mapping[str, Any], *, in_progress: bool) -> None:
    """Everything that is stored of one row. ``line`` is its line of ``core.synthesis.listing``."""
    known = state.service().synthesis.state(run)
    row = known.rows[stage, line["row"]]
    kit.section(f"{row.key} · {stage}", "product, reason and decisions")
    tone = "good" if line["passes"] else "bad"
    word = "passed" if line["passes"] else "stopped"
    reason = f'<span class="q"> {kit.escape(row.reason)}</span>' if row.reason else ""
    st.html(f'<div class="cs-outcome"><span class="cs-tag {tone}">{word}</span>{reason}</div>')
    _buttons(run, stage, row, line["decision"], in_progress=in_progress)
    about, edit = st.tabs(["Product", "Edit"])
    with about:
        if row.product is None:
            st.caption("The row has no product. Edit it, or run it again.")
        else:
            show_product(stage, row.product)
        _provenance(row, line)
    with edit:
        _edit(run, stage, row, in_progress=in_progress)


def _buttons(run: SynthesisRun, stage: str, row: Row, decision: str | None, *, in_progress: bool) -> None:
    if in_progress:
        st.caption("Rows can be changed when the run has stopped.")
    with st.container(horizontal=True, gap="small"):
        _button(
            "Accept", "check", in_progress or decision == ACCEPTED or row.product is None,
            lambda: run.decide(stage, row.key, ACCEPTED), "Later stages process it even if this one rejected it",
        )  # fmt: skip
        _button(
            "Reject", "block", in_progress or decision == REJECTED,
            lambda: run.decide(stage, row.key, REJECTED), "Later stages skip it",
        )  # fmt: skip
        if decision is not None:
            _button("Undo the decision", "undo", in_progress, lambda: run.decide(stage, row.key, None))
        _button(
            "Run again", "replay", in_progress, lambda: run.rerun(stage, row.key),
            "Generated again, with new answers, when the run resumes",
        )  # fmt: skip
        _button(
            "Run the stage again", "restart_alt", in_progress, lambda: run.rerun(stage),
            "All rows of the stage are generated again when the run resumes",
        )  # fmt: skip


def _button(label: str, icon: str, disabled: bool, act: Callable[[], None], note: str | None = None) -> None:
    key = f"synthesis-{label.lower().replace(' ', '-')}"
    if st.button(label, icon=f":material/{icon}:", key=key, disabled=disabled, help=note):
        with kit.error_boundary():
            act()
            st.rerun()


def _provenance(row: Row, line: Mapping[str, Any]) -> None:
    with st.expander("How it was made", icon=":material/history:"):
        cost = None if row.cost_usd is None else f"{row.cost_usd:.4f} US dollars"
        kit.facts(
            [
                ("Models", ", ".join(row.models) or None),
                ("Calls", row.n_calls),
                ("Cost", cost),
                ("Took", kit.seconds(row.wall_s)),
                ("Edited by a person", "yes" if row.edited else "no"),
                ("Run again", f"{row.generation} times"),
                *((f"Prompt {name}", f"SHA-256 {sha[:16]}…") for name, sha in row.prompts.items()),
                ("Decision", line["decision"]),
            ]
        )


def _edit(run: SynthesisRun, stage: str, row: Row, *, in_progress: bool) -> None:
    text = json.dumps(row.product or {}, ensure_ascii=False, indent=2)
    with st.form(f"edit-{stage}-{row.key}-{row.generation}", border=False):
        new = st.text_area("Product, a JSON object", text, height=420)
        if st.form_submit_button("Save", icon=":material/save:", type="primary", disabled=in_progress):
            with kit.error_boundary():
                try:
                    product = json.loads(new)
                except ValueError as error:
                    raise InvalidInput(f"the product is not JSON: {error}", field="product") from error
                if not isinstance(product, dict):
                    raise InvalidInput("the product is no JSON object", field="product", hint='{"name": value}')
                run.edit(stage, row.key, product, now=state.service().clock())
                st.rerun()
    st.caption("A changed row counts as passed. Later stages process it again when the run resumes.")
