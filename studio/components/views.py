"""The components as functions: each draws its data and returns the user's click."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from studio.components.base import ignore, packed, renderer

THEME_VERSION = 2
"""Part of the name under which Streamlit's front end stores the theme of a path, see ``theme.js``."""

SCHEME = "scheme"
"""Key of ``scheme_watch``."""


def token_view(
    *,
    uid: str,
    prompt_ids: ArrayLike | None,
    response_ids: ArrayLike | None,
    logprobs: ArrayLike | None,
    vocab: Mapping[int, tuple[str, bool]],
    spelled: Sequence[tuple[int, int, str]] = (),
    n_shared: int,
    in_loss: bool,
    notes: Sequence[str],
    key: str,
    entropy: ArrayLike | None = None,
    advantages: ArrayLike | None = None,
    diverges: int | None = None,
    against: str = "",
    focus: int | None = None,
    height: int = 460,
) -> None:
    """Every token of a step as a chip.

    Args:
        uid: identity of the shown step; scroll position and search are reset when it changes.
        prompt_ids: int32 [P], or None.
        response_ids: int32 [R], or None.
        logprobs: float32 [R], nats, NaN where unknown; None when no log-probs were recorded.
        vocab: token id -> (text, is it a special token), for the ids whose text is known.
        spelled: (first token, number of tokens, text) of the characters that several tokens spell together.
        n_shared: leading prompt tokens shared with the parent step.
        in_loss: whether the response counts in the loss.
        notes: texts for the status line: the source of token texts, and the estimator of the advantages.
        entropy: float32 [R], of the distribution that each token was drawn from, nats, NaN where unknown.
        advantages: float32 [R].
        diverges: index of the first token that differs from another step; ``against`` names that step.
        focus: token index to scroll to; None: the divergence, or else the response.
    """
    prompt = np.asarray(prompt_ids if prompt_ids is not None else [], dtype=np.int32)
    response = np.asarray(response_ids if response_ids is not None else [], dtype=np.int32)
    known = None if logprobs is None else [np.nan if v is None else v for v in np.asarray(logprobs).tolist()]
    renderer("tokens")(
        data={
            "uid": uid,
            "ids": packed(np.concatenate([prompt, response]), "int32"),
            "n_prompt": len(prompt),
            "n_shared": min(n_shared, len(prompt)),
            "logprobs": packed(known, "float32"),
            "entropy": packed(entropy, "float32"),
            "advantages": packed(advantages, "float32"),
            "diverges": diverges,
            "against": against,
            "vocab": [[token, text, special] for token, (text, special) in vocab.items()],
            "spelled": [list(one) for one in spelled],
            "in_loss": in_loss,
            "notes": list(notes),
            "focus": focus,
            "height": height,
        },
        key=key,
    )


def messages_view(*, uid: str, entries: Sequence[Mapping[str, Any]], key: str) -> None:
    """Messages as cards; ``entries`` come from ``studio.widgets.steps.messages``."""
    renderer("messages", "cards")(data={"uid": uid, "entries": list(entries)}, key=key)


def timeline(
    *,
    steps: Sequence[Mapping[str, Any]],
    selected: str | None,
    key: str,
    height: int = 620,
    stepped: Callable[[], None] = ignore,
) -> str | None:
    """The steps of a trajectory as rows; returns the step_uid that was clicked, once.

    ``stepped`` is called before the page is drawn; the click is in ``st.session_state[key]["step"]``.
    """
    result = renderer("timeline")(
        data={"steps": list(steps), "selected": selected, "height": height}, key=key, on_step_change=stepped
    )
    chosen: str | None = result.step
    return chosen


def facet_list(
    *,
    facets: Sequence[Mapping[str, Any]],
    noun: str,
    closed: Sequence[str],
    key: str,
    toggled: Callable[[], None] = ignore,
) -> dict[str, Any] | None:
    """Facets with counts; returns ``{"column", "value"}`` of the value that was clicked, once.

    ``noun`` says what is counted. ``toggled`` is called before the page is drawn; the click is in
    ``st.session_state[key]["toggle"]``.

    Each facet is ``{"column", "label", "help", "values": [[value, n], ...], "selected": [value, ...],
    "hints": {value: text}}``.
    """
    result = renderer("facets")(
        data={"facets": list(facets), "noun": noun, "closed": list(closed)}, key=key, on_toggle_change=toggled
    )
    clicked: dict[str, Any] | None = result.toggle
    return clicked


def tree_canvas(
    *,
    uid: str,
    nodes: Mapping[str, ArrayLike | None],
    labels: Sequence[str] | None,
    modes: Sequence[tuple[str, str]],
    n_lanes: int,
    n_sequences: int,
    n_original: int,
    n_packed: int,
    selected: int | None,
    colour: str | None,
    key: str,
    height: int = 420,
    coloured: Callable[[], None] = ignore,
) -> int | None:
    """The prefix tree; returns the index of the node that was clicked, once.

    ``colour`` is the mode to begin with, one of ``modes`` (None: the first). ``coloured`` is called when another mode
    is chosen, before the page is drawn; the mode is in ``st.session_state[key]["colour"]``.

    ``nodes`` holds, per node in depth-first order: start, stop, parent, position, lane_from, lane_to, n_owners
    (int32) and sampled, reward, advantage, policy, drift (float32, NaN unknown, None when all are unknown).
    """
    result = renderer("tree")(
        data={
            "uid": uid,
            "nodes": {
                name: packed(values, "float32" if name in FLOAT_COLUMNS else "int32") for name, values in nodes.items()
            },
            "labels": list(labels) if labels is not None else None,
            "modes": [list(mode) for mode in modes],
            "n_lanes": n_lanes,
            "n_sequences": n_sequences,
            "n_original": n_original,
            "n_packed": n_packed,
            "selected": selected,
            "colour": colour,
            "height": height,
        },
        key=key,
        on_node_change=ignore,
        on_colour_change=coloured,
    )
    clicked: int | None = result.node
    return clicked


FLOAT_COLUMNS = frozenset({"sampled", "reward", "advantage", "policy", "drift"})


def mask_canvas(
    *,
    uid: str,
    nodes: Mapping[str, ArrayLike],
    labels: Sequence[str] | None,
    ids: ArrayLike | None,
    vocab: Mapping[int, tuple[str, bool]],
    n_tokens: int,
    n_visible: int,
    n_sequences: int,
    key: str,
    height: int = 520,
) -> None:
    """The attention mask of a packed row, drawn from its nodes.

    ``nodes`` holds start, stop (own tokens), end (of the subtree) and n_owners, int32, ascending by start.
    """
    renderer("mask")(
        data={
            "uid": uid,
            "nodes": {name: packed(values, "int32") for name, values in nodes.items()},
            "labels": list(labels) if labels is not None else None,
            "ids": packed(ids, "int32"),
            "vocab": [[token, text] for token, (text, _) in vocab.items()],
            "n_tokens": n_tokens,
            "n_visible": n_visible,
            "n_sequences": n_sequences,
            "height": height,
        },
        key=key,
    )


def packed_rows(
    *, rows: Sequence[Mapping[str, Any]], budget: int, selected: int | None, key: str, height: int = 320
) -> int | None:
    """Packed rows under the budget; returns the index of the row that was clicked, once.

    Each row is ``{"index", "n_tokens", "segments": [[length, label, owner, detail], ...]}``.
    """
    result = renderer("rows")(
        data={"rows": list(rows), "budget": budget, "selected": selected, "height": height},
        key=key,
        on_row_change=ignore,
    )
    chosen: int | None = result.row
    return chosen


def siblings(
    *, rows: Sequence[Mapping[str, Any]], key: str, height: int = 420, acts: bool = True
) -> dict[str, str] | None:
    """Trajectories side by side; returns ``{"what", "uid"}`` of a click, once: trajectory, step, and with ``acts`` also
    reference and compare.

    Each row is ``{"uid", "name", "reward", "why", "reason", "advantage", "quality", "complete", "reference", "parts",
    "token", "cells": [{"uid", "index", "what", "n_tokens", "reward", "selected"}, ...]}``; ``why`` says in one line who
    gave the reward, ``reason`` is its tooltip; ``parts`` is the cell where it diverges from the reference, ``token``
    the token there.
    """
    result = renderer("siblings")(
        data={"rows": list(rows), "height": height, "acts": acts}, key=key, on_click_change=ignore
    )
    clicked: dict[str, str] | None = result.click
    return clicked


def plain_text(*, text: str, label: str, name: str, key: str, height: int = 600) -> None:
    """A text of any length. It is displayed in pieces, and can be copied or saved (as ``name``) completely."""
    renderer("plain")(data={"text": text, "label": label, "name": name, "height": height}, key=key)


def theme_choice(*, page: str, pages: Sequence[str], key: str) -> None:
    """Buttons for the theme of all pages in this browser; a choice loads the page again.

    Args:
        page: path of the page that draws it.
        pages: paths of all pages.
    """
    renderer("theme")(data={"page": page, "pages": list(pages), "version": THEME_VERSION}, key=key)


def sidebar_navigation() -> None:
    """Make the sidebar's entry of the open page remove the parameters of its address; draws nothing."""
    renderer("navigation")(key="navigation")


def scheme_watch() -> None:
    """Run the page again when its theme is switched; draws nothing.

    ``"light"`` or ``"dark"`` is then in ``st.session_state["scheme"]["scheme"]``, None before the first switch.
    """
    renderer("scheme")(key=SCHEME, default={"scheme": None}, on_scheme_change=ignore)


def training_rows(*, rows: Sequence[Mapping[str, Any]], most: float | None, key: str) -> None:
    """Rows of an export as text, what is in the loss marked by its advantage.

    Each row is ``{"title", "fields": [[name, text], ...], "paired", "sequences": [{"name", "n", "n_loss", "advantage",
    "runs": [{"text", "n", "loss", "advantage"}, ...]}, ...]}``. ``most``: the largest absolute advantage, which has the
    strongest colour; None: the rows have none.
    """
    renderer("training")(data={"rows": list(rows), "most": most}, key=key)


def transcript_view(
    *,
    uid: str,
    turns: Sequence[Mapping[str, Any]],
    n_cut: int,
    focus: str | None,
    key: str,
    height: int = 760,
    opened: Callable[[], None] = ignore,
) -> None:
    """All turns of a trajectory in one scroll, with search, folding by kind, and rendering on request.

    Args:
        uid: identity of the trajectory; scroll position and search are reset when it changes.
        turns: of ``studio.widgets.steps.transcript``.
        n_cut: texts that are cut because the whole would be too large.
        focus: step to begin at.
        key: of the component; a click on a step's button puts its uid into ``st.session_state[key]["step"]``.
        height: of the scrolled area, pixels.
        opened: called on that click, before the page is drawn.
    """
    renderer("transcript", "cards")(
        data={"uid": uid, "turns": list(turns), "n_cut": n_cut, "focus": focus, "height": height},
        key=key,
        on_step_change=opened,
    )
