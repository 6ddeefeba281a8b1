from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from core.errors import InvalidInput
from core.tree.build import build, concatenate
from core.tree.mask import visible
from core.tree.nodes import tree_nodes
from core.tree.order import sort_with_lcp
from core.tree.sequences import Sequences
from tests.effort import settings

from . import reference
from .strategies import sequences


def lists_of(seqs: Sequences) -> list[list[int]]:
    return [seqs.sequence(i).tolist() for i in range(len(seqs))]


@given(sequences())
@settings(max_examples=300, deadline=None)
def test_tree_equals_the_dict_trie(seqs):
    tree = build(seqs)
    root = reference.trie(lists_of(seqs))
    assert tree.n_packed == reference.count(root)
    assert tree.n_original == sum(map(len, lists_of(seqs)))
    nodes = tree_nodes(tree)
    drawn = {
        (
            int(nodes.depth[i]),
            tuple(tree.tokens[nodes.start[i] : nodes.start[i] + nodes.length[i]].tolist()),
            frozenset(nodes.owners(i).tolist()),
        )
        for i in range(len(nodes))
    }
    assert drawn == reference.compressed(root)
    assert len(drawn) == len(nodes)


@given(sequences())
@settings(max_examples=300, deadline=None)
def test_restoration_gives_back_every_sequence(seqs):
    tree = build(seqs)
    for i, ids in enumerate(lists_of(seqs)):
        assert tree.restore(tree.tokens, i).tolist() == ids
        assert tree.restore(tree.position_ids, i).tolist() == list(range(len(ids)))
    assert tree.tokens[tree.restore_index()].tolist() == seqs.ids.tolist()


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_each_token_sees_exactly_the_prefix_of_its_sequence(seqs):
    tree = build(seqs)
    everything = np.arange(len(tree.tokens))
    for member in range(len(seqs)):
        path = tree.path(member)
        for depth, position in enumerate(path.tolist()):
            seen = everything[visible(tree.end, position, everything)]
            assert seen.tolist() == path[: depth + 1].tolist()


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_nodes_hang_together(seqs):
    tree = build(seqs)
    nodes = tree_nodes(tree)
    assert nodes.length.sum() == tree.n_packed
    for i in range(len(nodes)):
        parent = nodes.parent[i]
        if parent < 0:
            assert nodes.depth[i] == 0 and nodes.level[i] == 0
        else:
            assert parent < i
            assert nodes.depth[i] == nodes.depth[parent] + nodes.length[parent]
            assert nodes.level[i] == nodes.level[parent] + 1
            assert set(nodes.owners(i)) <= set(nodes.owners(parent))
    for member in range(len(seqs)):
        leaf = nodes.leaf_of_member[member]
        if len(seqs.sequence(member)) == 0:
            assert leaf == -1
        else:
            assert nodes.depth[leaf] + nodes.length[leaf] == len(seqs.sequence(member))
            assert member in nodes.owners(leaf)


@given(sequences(min_size=1), sequences(min_size=1))
@settings(max_examples=100, deadline=None)
def test_trees_side_by_side_do_not_see_each_other(a, b):
    trees = [build(a), build(b)]
    row = concatenate(trees, pad_to=80 + sum(t.n_packed for t in trees), pad_id=7)
    assert row.n_padding == 80 and row.n_packed == trees[0].n_packed + trees[1].n_packed
    everything = np.arange(len(row.tokens))
    for member, ids in enumerate(lists_of(a) + lists_of(b)):
        path = row.path(member)
        assert row.tokens[path].tolist() == ids
        for depth, position in enumerate(path.tolist()):
            assert everything[visible(row.end, position, everything)].tolist() == path[: depth + 1].tolist()
    for position in everything[row.n_packed :].tolist():
        assert row.tokens[position] == 7
        assert everything[visible(row.end, position, everything)].tolist() == [position]
        assert everything[visible(row.end, everything, position)].tolist() == [position]
    nodes = tree_nodes(row)
    assert nodes.length.sum() == row.n_packed


@given(sequences(max_size=12))
@settings(max_examples=200, deadline=None)
def test_sort_is_bytewise_and_stable(seqs):
    order, lcp = sort_with_lcp(seqs)
    lists = lists_of(seqs)
    assert order.tolist() == sorted(range(len(lists)), key=lambda i: (seqs.sequence(i).tobytes(), i))
    for rank in range(1, len(order)):
        before, after = lists[order[rank - 1]], lists[order[rank]]
        shared = next((k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        assert lcp[rank] == (min(len(before), len(after)) if shared is None else shared)


def test_worked_example_of_the_docstring():
    tree = build(Sequences.from_lists([[5, 6], [5, 6], [5, 6]], [[7], [8, 9], [8]]))
    assert tree.tokens.tolist() == [5, 6, 7, 8, 9]
    assert tree.position_ids.tolist() == [0, 1, 2, 2, 3]
    assert tree.end.tolist() == [5, 5, 3, 5, 5]
    assert tree.path(1).tolist() == [0, 1, 3, 4]
    assert tree.token_ratio == 0.5
    assert tree.attention_pairs == 1 + 2 + 3 + 3 + 4


def test_order_of_arrival_does_not_change_the_row():
    rng = np.random.default_rng(3)
    lists = [rng.integers(0, 3, rng.integers(1, 9)).tolist() for _ in range(40)]
    one = build(Sequences.from_lists(lists, [[]] * 40))
    two = build(Sequences.from_lists(lists[::-1], [[]] * 40))
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.end.tolist() == two.end.tolist()


def test_nothing_at_all():
    tree = build(Sequences.from_lists([], []))
    assert tree.n_packed == 0 and tree.token_ratio is None and len(tree_nodes(tree)) == 0
    only_empty = build(Sequences.from_lists([[], []], [[], []]))
    assert only_empty.n_packed == 0 and only_empty.path(1).tolist() == []


def test_long_sequences_that_part_at_every_chunk_border():
    base = np.arange(40000, dtype=np.int32)
    lists = [base]
    for at in (0, 127, 128, 129, 16511, 16512, 16513, 39999):
        other = base.copy()
        other[at] += 1_000_000
        lists.append(other)
    tree = build(Sequences.from_lists(lists, [[]] * len(lists)))
    assert tree.n_packed == 40000 + sum(40000 - at for at in (0, 127, 128, 129, 16511, 16512, 16513, 39999))
    for i, ids in enumerate(lists):
        assert np.array_equal(tree.restore(tree.tokens, i), ids)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ids": np.zeros(3, dtype=np.int64)}, "ids"),
        ({"offsets": np.array([0, 2], dtype=np.int64)}, "offsets"),
        ({"offsets": np.array([0, 4, 3], dtype=np.int64)}, "offsets"),
        ({"n_prompt": np.array([3, 0], dtype=np.int64)}, "n_prompt"),
        ({"logprobs": np.zeros(2, dtype=np.float32)}, "logprobs"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(change, field):
    good = {
        "ids": np.array([1, 2, 3], dtype=np.int32),
        "offsets": np.array([0, 2, 3], dtype=np.int64),
        "n_prompt": np.array([1, 0], dtype=np.int64),
        "logprobs": None,
        "step_uids": ["a", "b"],
    }
    Sequences(**good)
    with pytest.raises(InvalidInput) as caught:
        Sequences(**{**good, **change})
    assert caught.value.field == field


def test_lists_keep_unknown_logprobs_unknown():
    seqs = Sequences.from_lists([[1], [2, 3]], [[4, 5], [6]], [[-0.5, -0.25], None])
    assert seqs.logprobs is not None
    assert np.isnan(seqs.logprobs).tolist() == [True, False, False, True, True, True]
    assert Sequences.from_lists([[1]], [[2]], [None]).logprobs is None
    with pytest.raises(InvalidInput, match="2 response tokens but 1"):
        Sequences.from_lists([[1]], [[2, 3]], [[-1.0]])
    taken = seqs.take([1, 0, 1])
    assert lists_of(taken) == [[2, 3, 6], [1, 4, 5], [2, 3, 6]]
    assert taken.ids[taken.response_index()].tolist() == [6, 4, 5, 6]


def test_a_compaction_begins_another_root():
    """An agent that rewrites its history to a summary shares nothing with what it did before, but with itself."""
    long = [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]]
    compacted = [[8, 9], [8, 9, 10]]
    tree = build(Sequences.from_lists(long + compacted, [[]] * 5))
    assert tree.n_packed == 7 + 3
    nodes = tree_nodes(tree)
    assert sorted(len(nodes.owners(i)) for i in np.flatnonzero(nodes.parent < 0)) == [2, 3]
    everything = np.arange(tree.n_packed)
    for member, ids in enumerate(long + compacted):
        last = int(tree.path(member)[-1])
        assert tree.tokens[everything[visible(tree.end, last, everything)]].tolist() == ids
        assert tree.position_ids[last] == len(ids) - 1
