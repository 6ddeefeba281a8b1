"""Branch points against a brute force over all prefixes, and the variance they explain against an analysis by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tree.decisions import branch_points
from core.tree.sequences import Sequences
from tests.effort import settings


def made(lists):
    return Sequences.from_lists([[] for _ in lists], lists)


def brute(lists, values):
    """{depth and members: (ways by members, agreement, explained)}, from every prefix of every sequence."""
    known = [value for value in values if not np.isnan(value)]
    total = sum((value - np.mean(known)) ** 2 for value in known) if len(known) > 1 else 0.0
    points = {}
    for prefix in {tuple(one[:n]) for one in lists for n in range(len(one) + 1)}:
        n = len(prefix)
        ways = {}
        for i, one in enumerate(lists):
            if tuple(one[:n]) == prefix:
                ways.setdefault(one[n] if len(one) > n else None, []).append(i)
        if len(ways) < 2:
            continue
        scored = [[values[i] for i in way if not np.isnan(values[i])] for way in ways.values()]
        flat = [value for way in scored for value in way]
        between = sum(len(way) * (np.mean(way) - np.mean(flat)) ** 2 for way in scored if way)
        sizes = [len(way) for way in ways.values()]
        points[n, tuple(sorted(i for way in ways.values() for i in way))] = (
            {(tuple(way), token is None) for token, way in ways.items()},
            max(sizes) / sum(sizes),
            between / total if total > 0 else None,
        )
    return points


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=4), st.sampled_from([0.0, 0.5, 1.0, np.nan])), min_size=1,
             max_size=7)
)  # fmt: skip
def test_branch_points_are_those_of_a_brute_force(attempts):
    lists, values = [one for one, _ in attempts], np.array([value for _, value in attempts])
    wanted = brute(lists, values)
    points = branch_points(made(lists), values)
    assert len(points) == len(wanted)
    for point in points:
        members = tuple(sorted(i for way in point.branches for i in way.members.tolist()))
        ways, agreement, explained = wanted[point.depth, members]
        assert {(tuple(way.members.tolist()), way.ends) for way in point.branches} == ways
        assert point.agreement == agreement
        assert point.explained == (None if explained is None else pytest.approx(explained, abs=1e-12))
        means = [way.mean for way in point.branches if way.mean is not None]
        assert means == sorted(means, reverse=True)


def test_the_example_of_the_module():
    first, second = branch_points(made([[0, 1, 3], [0, 1, 4], [0, 2], [0, 2]]), np.array([1.0, 1.0, 0.0, 0.0]))
    assert (first.depth, first.agreement, first.explained) == (1, 0.5, 1.0)
    assert (second.depth, second.explained) == (2, 0.0)
