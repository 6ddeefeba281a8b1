"""Converts a packed tree to the data of the tree canvas: nodes, lanes, colours by owner; and rows to their drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.tree.build import PackedTree
from core.tree.nodes import TreeNodes
from core.tree.packing import Part
from core.tree.sequences import Sequences

LABELLED_NODES = 3000
LABEL_CHARS = 72
LABEL_TOKENS = 40


@dataclass(frozen=True, slots=True, eq=False)
class TreeDrawing:
    """Arguments of ``components.tree_canvas`` that come from the data."""

    nodes: dict[str, NDArray[Any] | None]
    labels: list[str] | None
    modes: list[tuple[str, str]]
    n_lanes: int
    n_sequences: int
    n_original: int
    n_packed: int


def tree_drawing(
    tree: PackedTree,
    nodes: TreeNodes,
    sequences: Sequences,
    facts: Mapping[str, Mapping[str, float | None]],
    decode: Callable[[Sequence[int]], str | None],
    drift: Mapping[int, int] | None = None,
) -> TreeDrawing:
    """Nodes with their colours.

    Args:
        tree: one packed row.
        nodes: its nodes.
        sequences: the source of ``tree.members``.
        facts: per step_uid the values for colours: ``reward``, ``advantage``, ``policy``; None means unknown.
        decode: ids -> text, or None if no tokenizer matches.
        drift: node -> tokens of lost sharing, of the steps that diverge there from the step before them.
    """
    order = step_order(tree, nodes, sequences)
    colours = {
        name: owner_means([_number(facts.get(uid, {}).get(name)) for uid in order], nodes)
        for name in ("reward", "advantage", "policy")
    }
    modes = [("sharing", "Sharing"), ("role", "Sampled")]
    modes += [
        (name, label)
        for name, label in (("reward", "Reward"), ("advantage", "Advantage"), ("policy", "Policy"))
        if colours[name] is not None
    ]
    lost = None
    if drift:
        lost = np.full(len(nodes), np.nan, dtype=np.float32)
        lost[list(drift)] = list(drift.values())
        modes.append(("drift", "Drift"))
    return TreeDrawing(
        nodes={
            "start": nodes.start,
            "stop": nodes.start + nodes.length,
            "parent": nodes.parent,
            "position": nodes.depth,
            "lane_from": nodes.owner_first,
            "lane_to": nodes.owner_stop,
            "n_owners": nodes.n_owners,
            "sampled": sampled_share(tree, nodes, sequences),
            **colours,
            "drift": lost,
        },
        labels=node_labels(tree, nodes, decode),
        modes=modes,
        n_lanes=len(order),
        n_sequences=len(order),
        n_original=tree.n_original,
        n_packed=tree.n_packed,
    )


def step_order(tree: PackedTree, nodes: TreeNodes, sequences: Sequences) -> list[str]:
    """step_uid at each rank, top lane first."""
    return [sequences.step_uids[int(tree.members[row])] for row in nodes.member_of_rank.tolist()]


def owner_means(values: Sequence[float], nodes: TreeNodes) -> NDArray[np.float32] | None:
    """Mean over each node's owners of a value per rank, NaN ignored: float32 [N]; None when all are unknown."""
    known = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(known)
    if not present.any():
        return None
    sums = np.concatenate([[0.0], np.cumsum(np.where(present, known, 0.0))])
    counts = np.concatenate([[0], np.cumsum(present)])
    n = counts[nodes.owner_stop] - counts[nodes.owner_first]
    total = sums[nodes.owner_stop] - sums[nodes.owner_first]
    return np.where(n > 0, total / np.maximum(n, 1), np.nan).astype(np.float32)


def sampled_share(tree: PackedTree, nodes: TreeNodes, sequences: Sequences) -> NDArray[np.float32]:
    """Share of each node's tokens that an owner sampled: float32 [N] in [0, 1]."""
    sampled = np.zeros(len(tree.tokens), dtype=bool)
    for row, member in enumerate(tree.members.tolist()):
        sampled[tree.path(row)[int(sequences.n_prompt[member]) :]] = True
    counts = np.concatenate([[0], np.cumsum(sampled)])
    share = (counts[nodes.start + nodes.length] - counts[nodes.start]) / np.maximum(nodes.length, 1)
    result: NDArray[np.float32] = share.astype(np.float32)
    return result


def node_labels(tree: PackedTree, nodes: TreeNodes, decode: Callable[[Sequence[int]], str | None]) -> list[str] | None:
    """The beginning of each node's text; None if no tokenizer matches or there are too many nodes."""
    if len(nodes) > LABELLED_NODES:
        return None
    labels = []
    for start, length in zip(nodes.start.tolist(), nodes.length.tolist(), strict=True):
        text = decode(tree.tokens[start : start + min(length, LABEL_TOKENS)].tolist())
        if text is None:
            return None
        labels.append(" ".join(text.split())[:LABEL_CHARS])
    return labels


def rows_drawing(
    rows: Sequence[Sequence[Part]],
    lengths: NDArray[np.int64],
    step_uids: Sequence[str],
    owner_of: Mapping[str, str],
    detail_of: Mapping[str, str],
    first: int = 0,
) -> list[dict[str, Any]]:
    """Rows for ``components.packed_rows``: per row, the tokens that each step adds to it.

    Args:
        rows: parts of each row; ``Part.order`` indexes ``step_uids``.
        lengths: tokens of each step.
        step_uids: the steps.
        owner_of: step_uid -> its trajectory, which determines the colour.
        detail_of: step_uid -> one line about it.
        first: number of the first of these rows.
    """
    drawn = []
    for index, parts in enumerate(rows, first):
        segments: list[list[Any]] = []
        for part in parts:
            for member, shared in zip(part.order.tolist(), part.lcp.tolist(), strict=True):
                novel = int(lengths[member]) - shared
                if novel:
                    uid = step_uids[member]
                    segments.append([novel, f"step {uid}", owner_of.get(uid, uid), detail_of.get(uid, "")])
        n_tokens = sum(part.n_packed for part in parts)
        drawn.append({"index": index, "n_tokens": n_tokens, "segments": segments})
    return drawn


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
