"""The rows of an export before it is written: decoded text, loss mask and advantages, as the trainer reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import streamlit as st

from core.batch.plan import Plan
from core.errors import StudioError
from core.export import EXPORTERS
from core.export.base import source_of, tokenizers_of
from core.export.preview import Preview, preview
from core.export.reading import Row, Tokens
from studio import components, kit, state
from studio.kit.data_tables import pagination
from studio.widgets.steps.messages import conversation
from studio.widgets.steps.token_texts import UNKNOWN_TOKENIZER, TokenTexts, texts_for

PAGE_ROWS = 4
FIELD_CHARS = 160
GROUP = "from_group"


def export_preview(plan: Plan, name: str, options: Mapping[str, str]) -> None:
    """Draw the rows that the format makes of the plan, a page at a time."""
    kit.section("Preview", "the rows as the trainer reads them, made by the export itself")
    first = int(state.query(GROUP, "1") or 1) - 1 if (state.query(GROUP, "1") or "1").isdigit() else 0
    try:
        made = _made(plan.hash, name, json.dumps(dict(options), sort_keys=True), max(first, 0), plan)
    except StudioError as error:
        kit.show_error(error)
        return
    if not made.is_whole:
        choose_groups(plan, made)
    begin = pagination(len(made.rows), key="preview-rows", size=PAGE_ROWS)
    texts = texts_of(plan)
    st.html(kit.caption_html(texts.why))
    shown = made.rows[begin : begin + PAGE_ROWS]
    if any(row.messages is not None for row in shown):
        for number, row in enumerate(shown, begin + 1):
            message_row(row, number)
    else:
        token_rows(shown, begin, texts, key=f"{plan.hash}-{name}")


@st.cache_resource(max_entries=3, show_spinner=False)
def _made(plan_hash: str, name: str, options: str, first: int, _plan: Plan) -> Preview:
    # The plan's hash covers everything that reaches a file, so equal keys have equal rows.
    return preview(EXPORTERS[name], _plan, state.service().pool, json.loads(options), first_group=first)


def choose_groups(plan: Plan, made: Preview) -> None:
    """The first group of the preview, for plans that are too large to be previewed whole."""
    last = made.first_group + made.n_groups
    left, right = st.columns([1, 4], gap="small", vertical_alignment="bottom")
    chosen = left.number_input("From group", 1, plan.n_groups, made.first_group + 1, key=f"from-{plan.hash[:12]}")
    right.caption(
        f"Groups {kit.count(made.first_group + 1)} to {kit.count(last)} of {kit.count(plan.n_groups)}. "
        "Row numbers and packing are those of a file of these groups alone."
    )
    if chosen != made.first_group + 1:
        state.set_query(**{GROUP: chosen if chosen > 1 else None, "page": None})
        st.rerun()


def texts_of(plan: Plan) -> TokenTexts:
    """The tokenizer of the plan's steps; unknown when they have several."""
    pool = state.service().pool
    if len(tokenizers_of(plan, source_of(plan, pool))["hashes"]) > 1:
        return TokenTexts(None, "ids only: the plan's steps have several tokenizers")
    uid = pool.edits.captured_step(plan.step_uids[0])
    return texts_for(pool.steps.get(uid), state.service().settings) if pool.steps.existing([uid]) else UNKNOWN_TOKENIZER


def token_rows(rows: Sequence[Row], begin: int, texts: TokenTexts, *, key: str) -> None:
    """Rows of token ids as text."""
    known = [
        np.nanmax(np.abs(one.advantages))
        for row in rows
        for one in row.tokens
        if one.advantages is not None and not np.isnan(one.advantages).all()
    ]
    components.training_rows(
        rows=[
            {
                "title": f"Row {begin + place}",
                "fields": [[name, field_text(value)] for name, value in row.fields.items()],
                "paired": {one.name for one in row.tokens} == {"chosen", "rejected"},
                "sequences": [sequence(one, texts) for one in row.tokens],
            }
            for place, row in enumerate(rows, 1)
        ],
        most=float(max(known)) if known else None,
        key=components.mount_key("training-rows", key),
    )


def sequence(one: Tokens, texts: TokenTexts) -> dict[str, Any]:
    """A token sequence as runs of equal mask and advantage, for ``components.training_rows``."""
    advantages = np.full(len(one.ids), np.nan, dtype=np.float32) if one.advantages is None else one.advantages
    changed = (one.loss[1:] != one.loss[:-1]) | (
        (advantages[1:] != advantages[:-1]) & ~(np.isnan(advantages[1:]) & np.isnan(advantages[:-1]))
    )
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), len(one.ids)] if len(one.ids) else []
    runs = []
    for low, high in pairwise(edges):
        ids = one.ids[low:high]
        decoded = texts.decode(ids)
        value = float(advantages[low])
        runs.append(
            {
                "text": " ".join(map(str, ids.tolist())) + " " if decoded is None else decoded,
                "n": high - low,
                "loss": bool(one.loss[low]),
                "advantage": None if np.isnan(value) else value,
            }
        )
    known = advantages[~np.isnan(advantages)]
    least, most = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    span = f"{least:+.3f}" if most - least < 5e-4 else f"{least:+.3f} to {most:+.3f}"
    return {
        "name": one.name,
        "n": len(one.ids),
        "n_loss": int(one.loss.sum()),
        "advantage": span if len(known) else None,
        "runs": runs,
    }


def message_row(row: Row, number: int) -> None:
    """A conversation; messages in the loss are marked."""
    kit.section(f"Row {number}", "")
    if row.fields:
        kit.facts([(name, field_text(value)) for name, value in row.fields.items()])
    components.messages_view(
        uid=f"preview-{number}",
        entries=conversation(row.messages or [], row.trained),
        key=f"preview-messages-{number}",
    )


def field_text(value: Any) -> str:
    """A field as one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=plain)
    return text if len(text) <= FIELD_CHARS else f"{text[:FIELD_CHARS]}… ({kit.count(len(text))} characters)"


def plain(value: Any) -> Any:
    """A number of numpy as Python's; anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
