"""Display of a step's tokens, with advantages, loss mask and the first difference from another step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from core.config import Settings
from core.pool import Pool
from core.types import View
from studio import components, state
from studio.widgets.inspect.divergence import first_divergent
from studio.widgets.plans.group_credit import step_credit
from studio.widgets.steps.token_texts import texts_for

ENTROPY_FIELD = "token_entropies"
"""Metadata field in which producers send the entropy of each sampled token's distribution."""
MAX_SIBLINGS = 24
EDITED = "These are the captured tokens. The answer was edited: see the tab Edit"


def show_tokens(
    step: Mapping[str, Any],
    settings: Settings,
    *,
    other: Mapping[str, Any] | None = None,
    key: str = "step-tokens",
    height: int = 520,
) -> None:
    """Draw every token of the step; with ``other``, mark the first token that differs from that step."""
    prompt, response = ids_of(step.get("prompt_ids")), ids_of(step.get("response_ids"))
    texts, credit = texts_for(step, settings), step_credit(step)
    edited = state.service().pool.edits.current(str(step["step_uid"])) is not None
    ids = np.concatenate([prompt, response])
    diverges, against = None, ""
    if other is not None:
        diverges = first_divergent(all_ids(step), all_ids(other))
        against = f"first token that differs from {other['step_uid']}"
    components.token_view(
        uid=str(step["step_uid"]),
        prompt_ids=prompt,
        response_ids=response,
        logprobs=step.get("response_logprobs"),
        entropy=entropies(step, len(response)),
        advantages=credit.advantages if credit.advantages is not None and len(credit.advantages) else None,
        vocab=texts.vocab(ids),
        spelled=texts.spelled(ids),
        n_shared=int(step.get("n_shared_tokens") or 0),
        in_loss=credit.in_loss,
        notes=[credit.why, texts.why, *([EDITED] if edited else [])],
        diverges=None if diverges is None or diverges >= len(prompt) + len(response) else diverges,
        against=against,
        height=height,
        key=key,
    )


def comparison_picker(step: Mapping[str, Any]) -> dict[str, Any] | None:
    """The choice of the step to compare with, in the URL as ``against``; None when no step is chosen."""
    pool = state.service().pool
    requested = state.query("against")
    options = comparable_steps(pool, step)
    if requested and requested not in options and requested != step["step_uid"] and pool.steps.existing([requested]):
        options[requested] = requested
    current = requested if requested in options else None
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="token-against"):
        chosen = st.selectbox(
            "Compare with",
            [None, *options],
            index=[None, *options].index(current),
            format_func=lambda uid: "Mark the first token that differs from …" if uid is None else options[uid],
            label_visibility="collapsed",
            key=f"against-{step['step_uid']}-{current}",
        )
        if current and st.button("Side by side", icon=":material/compare:", key="compare-steps"):
            state.set_query(compare=[step["step_uid"], current], against=None)
            st.rerun()
    if chosen != current:
        state.set_query(against=chosen)
        st.rerun()
    return pool.steps.get(current) if current else None


def comparable_steps(pool: Pool, step: Mapping[str, Any]) -> dict[str, str]:
    """Steps offered for comparison, uid -> label: the step before, and siblings' steps at the same index."""
    labels: dict[str, str] = {}
    if step.get("parent_step_uid"):
        labels[step["parent_step_uid"]] = "the step before"
    if step.get("prompt_uid") is None:
        return labels
    index = step["step_index"]
    view = View({"prompt_uid": step["prompt_uid"], "step_index": [index, index]})
    for row in pool.steps.page(view, order="trajectory_uid", limit=MAX_SIBLINGS).to_pylist():
        if row["trajectory_uid"] != step["trajectory_uid"]:
            labels[row["step_uid"]] = f"{row['trajectory_uid']}, step {index}"
    return labels


def entropies(step: Mapping[str, Any], n_response: int) -> NDArray[np.float32] | None:
    """Entropy of each sampled token, nats, NaN where unknown; None where the producer sent none that fit."""
    values: Sequence[Any] | None = (step.get("metadata") or {}).get(ENTROPY_FIELD)
    if not isinstance(values, list) or len(values) != n_response or not values:
        return None
    if not all(value is None or isinstance(value, int | float) for value in values):
        return None
    return np.asarray([np.nan if value is None else value for value in values], dtype=np.float32)


def all_ids(step: Mapping[str, Any]) -> NDArray[np.int32]:
    """Ids of prompt and response: int32 [P + R]."""
    return np.concatenate([ids_of(step.get("prompt_ids")), ids_of(step.get("response_ids"))])


def ids_of(ids: Any) -> NDArray[np.int32]:
    """Token ids as int32; an empty array when unknown."""
    return np.asarray(ids if ids is not None else [], dtype=np.int32)
