"""Tests of tree and mask drawings against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.tree.build import build
from core.tree.mask import dense_mask
from core.tree.nodes import tree_nodes
from core.tree.packing import pack
from core.tree.sequences import Sequences
from studio.charts.mask import mask_heatmap, mask_nodes
from studio.charts.tree import owner_means, rows_drawing, sampled_share, step_order, tree_drawing
from studio.widgets.optimise.tree_details import owner_line
from tests.effort import settings

short = st.lists(st.integers(0, 2), min_size=1, max_size=6)
many = st.lists(st.tuples(short, short), min_size=1, max_size=8)


def made(pairs):
    sequences = Sequences.from_lists([p for p, _ in pairs], [r for _, r in pairs])
    tree = build(sequences)
    return sequences, tree, tree_nodes(tree)


@settings(deadline=None)
@given(many)
def test_blocks_of_the_mask_cover_exactly_the_visible_pairs(pairs):
    """What the canvas paints (a triangle and a rectangle per node) against the definition."""
    _, tree, nodes = made(pairs)
    blocks = mask_nodes(tree, nodes)
    painted = np.zeros((tree.n_packed, tree.n_packed), dtype=int)
    for start, stop, end in zip(blocks["start"], blocks["stop"], blocks["end"], strict=True):
        for key in range(start, stop):
            painted[key:stop, key] += 1
            painted[stop:end, key] += 1
    assert (painted == dense_mask(tree.end)).all()
    assert painted.sum() == tree.attention_pairs


@settings(deadline=None)
@given(many)
def test_share_of_sampled_tokens_and_owner_means(pairs):
    sequences, tree, nodes = made(pairs)
    share = sampled_share(tree, nodes, sequences)
    values = np.arange(len(sequences), dtype=float)
    by_rank = [values[int(uid)] for uid in step_order(tree, nodes, sequences)]
    means = owner_means(by_rank, nodes)
    for node in range(len(nodes)):
        tokens = range(int(nodes.start[node]), int(nodes.start[node] + nodes.length[node]))
        owners = nodes.owners(node).tolist()
        sampled = {
            int(at) for owner in range(len(sequences)) for at in tree.path(owner)[int(sequences.n_prompt[owner]) :]
        }
        assert share[node] == np.float32(sum(token in sampled for token in tokens) / len(tokens))
        assert means[node] == np.float32(np.mean([values[owner] for owner in owners]))


def test_unknown_values_are_left_out_of_the_mean():
    _, _, nodes = made([([1], [1]), ([1], [2])])
    nan = float("nan")
    assert owner_means([nan, nan], nodes) is None
    assert owner_means([nan, 2.0], nodes)[0] == 2.0


@settings(deadline=None)
@given(many, st.integers(12, 40))
def test_rows_hold_each_packed_token_once(pairs, budget):
    sequences = Sequences.from_lists([p for p, _ in pairs], [r for _, r in pairs])
    packing = pack(sequences, np.zeros(len(sequences), dtype=np.int64), budget)
    rows = rows_drawing(packing.rows, sequences.lengths.tolist(), sequences.step_uids, {}, {})
    assert [row["n_tokens"] for row in rows] == packing.row_tokens.tolist()
    assert [sum(segment[0] for segment in row["segments"]) for row in rows] == packing.row_tokens.tolist()


def test_a_drawing_offers_only_colours_that_are_known():
    sequences, tree, nodes = made([([1, 2], [3]), ([1, 2], [4])])
    plain = tree_drawing(tree, nodes, sequences, {}, lambda ids: None)
    assert [mode for mode, _ in plain.modes] == ["sharing", "role"]
    assert plain.labels is None
    facts = {"0": {"reward": 1.0}, "1": {"reward": 0.0}}
    scored = tree_drawing(tree, nodes, sequences, facts, lambda ids: " ".join(map(str, ids)))
    assert [mode for mode, _ in scored.modes] == ["sharing", "role", "reward"]
    assert scored.nodes["reward"][0] == 0.5
    assert scored.labels[0] == "1 2"


def test_heat_map_of_a_small_row_is_the_mask():
    _, tree, _ = made([([1, 2], [3]), ([1, 2], [4])])
    drawn = mask_heatmap(tree).data[0]
    assert (np.asarray(drawn.z) == dense_mask(tree.end)).all()


def test_the_hover_names_the_steps_of_a_node():
    pairs = [([1], [2]), ([1, 2, 3], [4]), ([1, 2, 3, 4, 5], [6]), ([1], [9]), ([1], [7, 7])]
    sequences, tree, nodes = made(pairs)
    facts = {
        str(i): {"trajectory_uid": uid, "step_index": index}
        for i, (uid, index) in enumerate([("a", 0), ("a", 1), ("a", 2), ("b", 4), ("c", 0)])
    }
    order = step_order(tree, nodes, sequences)
    lines = {
        tuple(tree.tokens[nodes.start[i] : nodes.start[i] + nodes.length[i]].tolist()): owner_line(
            order, nodes, i, facts
        )
        for i in range(len(nodes))
    }
    # Trajectories stand in the order of the lanes.
    assert lines[(1,)] == "5 steps: 0–2 of a, 0 of c, 4 of b"
    assert lines[(3, 4)] == "2 steps: 1–2 of a"
    assert lines[(5, 6)] == "step 2 of a"
    assert lines[(9,)] == "step 4 of b"
