"""Trajectories that fork, and steps that were left out: every chained estimator against recursions over lists."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.credit import REGISTRY, get
from core.credit.chain import UnitChain, depths, step_rewards
from tests.effort import settings

from . import brute
from .batches import CHECK, Trajectory, batch_of, steps

EVERY = settings(max_examples=80, deadline=None)
factor = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@dataclass
class Tree:
    """A trajectory, what each step goes on from (None: nothing), and what steps that were left out earned."""

    trajectory: Trajectory
    before: list[int | None]
    left_out: float

    @property
    def rewards(self):
        own = [s.reward or 0.0 for s in self.trajectory.steps]
        return brute.leaf_rewards(own, self.trajectory.total, sum(own) + self.left_out, self.before)

    @property
    def token_rewards(self):
        per_step = zip(self.trajectory.steps, self.rewards, strict=True)
        return [x for s, r in per_step for x in [0.0] * (len(s.token_values) - 1) + [r]]

    @property
    def token_before(self):
        return brute.tree_of_tokens([len(s.token_values) for s in self.trajectory.steps], self.before)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    some = draw(st.lists(steps(), min_size=1, max_size=6))
    before = [draw(st.sampled_from([None, *range(k)])) for k in range(len(some))]
    trajectory = Trajectory(some, draw(st.sampled_from([0.0, 0.5, 1.0])), draw(st.sampled_from([0.0, 0.25])))
    return Tree(trajectory, before, draw(st.sampled_from([0.0, 1.0, -0.5])))


groups = st.lists(st.lists(trees(), min_size=2, max_size=3), min_size=1, max_size=2)


def batch_of_trees(data):
    batch = batch_of([[tree.trajectory for tree in group] for group in data])
    everyone = [tree for group in data for tree in group]
    before, earned, at = [], [], 0
    for tree in everyone:
        before += [-1 if b is None else at + b for b in tree.before]
        at += len(tree.before)
        earned.append(sum(s.reward or 0.0 for s in tree.trajectory.steps) + tree.left_out)
    return everyone, replace(batch, before=np.array(before, dtype=np.int64), steps_reward=np.array(earned))


@given(groups, factor, factor)
@EVERY
def test_step_gae_follows_the_predecessors(data, gamma, lam):
    everyone, batch = batch_of_trees(data)
    credit = get("step_gae").advantages({"gamma": gamma, "lam": lam, "whiten": "none"}, batch)
    expected = [
        a for t in everyone
        for a in brute.tree_gae(t.rewards, [s.value for s in t.trajectory.steps], t.before, gamma, lam)
    ]  # fmt: skip
    assert credit.step == pytest.approx(expected, abs=1e-9)


@given(groups, factor, factor)
@EVERY
def test_token_gae_follows_the_predecessors(data, gamma, lam):
    everyone, batch = batch_of_trees(data)
    credit = get("token_gae").advantages({"gamma": gamma, "lam": lam, "whiten": "none"}, batch)
    expected = [
        a for t in everyone
        for a in brute.tree_gae(
            t.token_rewards, [v for s in t.trajectory.steps for v in s.token_values], t.token_before, gamma, lam
        )
    ]  # fmt: skip
    assert credit.token == pytest.approx(expected, abs=1e-9)


def paths_from(k, before):
    """(path, weight) of each way from unit k to an end: each taken on its own, weighed 1 / choices at every fork."""
    after = [j for j, b in enumerate(before) if b == k]
    if not after:
        return [([k], 1.0)]
    return [([k, *path], w / len(after)) for j in after for path, w in paths_from(j, before)]


@given(groups, factor, factor)
@EVERY
def test_a_tree_is_its_paths_each_a_chain_of_its_own(data, gamma, lam):
    """The reference is GAE of plain chains, as Agent-R1 and StepPO have it: no recursion over a tree."""
    everyone, batch = batch_of_trees(data)
    expected = []
    for tree in everyone:
        values = [s.value for s in tree.trajectory.steps]
        for k in range(len(values)):
            ways = paths_from(k, tree.before)
            assert sum(w for _, w in ways) == pytest.approx(1)
            chains = [
                brute.gae([tree.rewards[j] for j in path], [values[j] for j in path], gamma, lam) for path, _ in ways
            ]
            expected.append(sum(w * chain[0] for (_, w), chain in zip(ways, chains, strict=True)))
    credit = get("step_gae").advantages({"gamma": gamma, "lam": lam, "whiten": "none"}, batch)
    assert credit.step == pytest.approx(expected, abs=1e-9)


BY_HAND = [
    # A fork at the first step, R = 1, no rewards of steps: every return is 1, and A = 1 − V at γ = λ = 1.
    ([None, 0, 0], [None, None, None], 1.0, [0.5, 0.2, 0.8], [0.5, 0.8, 0.2]),
    # The left branch earned 0.4 on its way; what is left of R = 1 is the outcome 0.6 at both ends.
    # Returns: left 1.0, right 0.6, root their mean 0.8.
    ([None, 0, 0], [None, 0.4, None], 1.0, [0.0, 0.0, 0.0], [0.8, 1.0, 0.6]),
    # The left branch goes on twice more. Its ends are worth 1 each, with 0.2 earned on one: outcome 0.8.
    # Ends: 1.0, 0.8; left: their mean 0.9; right: 0.8; root: (0.9 + 0.8) / 2, not (1.0 + 0.8 + 0.8) / 3.
    ([None, 0, 0, 1, 1], [None, None, None, 0.2, None], 1.0, [0.0] * 5, [0.85, 0.9, 0.8, 1.0, 0.8]),
]


@pytest.mark.parametrize(("before", "rewards", "total", "values", "expected"), BY_HAND)
def test_three_trees_by_hand(before, rewards, total, values, expected):
    model = CHECK[0][1].steps[0]
    some = [replace(model, reward=reward, value=value) for reward, value in zip(rewards, values, strict=True)]
    _, batch = batch_of_trees([[Tree(Trajectory(some, total, 0.0), before, 0.0)]])
    credit = get("step_gae").advantages({"whiten": "none"}, batch)
    assert credit.step == pytest.approx(expected)


@given(groups, factor)
@EVERY
def test_returns_follow_the_predecessors(data, gamma):
    everyone, batch = batch_of_trees(data)
    returns = [g for t in everyone for g in brute.tree_returns(t.rewards, t.before, gamma)]
    plain = get("turn_discount").advantages({"discount": gamma, "baseline": "none"}, batch)
    assert plain.step == pytest.approx(returns, abs=1e-9)
    assert get("gigpo").advantages({"gamma": gamma}, batch).step_return == pytest.approx(returns, abs=1e-9)
    baseline = [t.trajectory.baseline for t in everyone for _ in t.before]
    to_go = [g for t in everyone for g in brute.tree_returns(t.rewards, t.before, 1.0)]
    assert get("remax").advantages({}, batch).step == pytest.approx(np.subtract(to_go, baseline), abs=1e-9)
    assert get("reinforce_plus_plus").advantages({}, batch).step_return == pytest.approx(to_go, abs=1e-9)
    if gamma < 1:
        token = get("reinforce_plus_plus").advantages({"gamma": gamma}, batch)
        expected = [g for t in everyone for g in brute.tree_returns(t.token_rewards, t.token_before, gamma)]
        assert token.token_return == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.lists(st.floats(-3, 3), max_size=6), max_size=6), factor)
@EVERY
def test_a_chain_is_a_tree_without_branches(parts, gamma):
    flat = np.array([x for part in parts for x in part])
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    before = np.arange(len(flat), dtype=np.int64) - 1
    before[starts[lengths > 0]] = -1
    chain, tree = UnitChain(starts, lengths), UnitChain(starts, lengths, before)
    assert tree.discounted(flat, gamma) == pytest.approx(chain.discounted(flat, gamma), abs=1e-12)
    assert tree.next(flat) == pytest.approx(chain.next(flat), abs=1e-12)
    assert tree.has_successor(len(flat)).tolist() == chain.has_successor(len(flat)).tolist()
    assert depths(before).tolist() == [k for n in lengths for k in range(n)]


def test_a_critic_s_value_of_one_choice_is_not_the_other_s_future():
    """Two choices of one call: each is its own step of length one, whatever the other is worth."""
    batch = replace(batch_of([[CHECK[0][1]]]), before=np.array([-1, -1]))
    plain = {"whiten": "none", "lam": 0.95}
    credit = get("step_gae").advantages(plain, batch)
    assert credit.step == pytest.approx([0.0 - 0.1, 0.0 - 0.3])
    moved = get("step_gae").advantages(plain, replace(batch, value=np.array([0.1, 5.0])))
    assert moved.step[0] == credit.step[0]


def test_a_left_out_step_s_reward_is_no_outcome():
    """r = [1, 0] and only the second step is in the batch: it earned nothing."""
    one = batch_of([[Trajectory([CHECK[0][1].steps[0]], score=1.0)]])
    assert step_rewards(replace(one, steps_reward=np.array([1.0]))).tolist() == [0.0]
    assert step_rewards(one).tolist() == [1.0], "an outcome that no step earned stands on the last step"


def test_estimators_that_read_rewards_by_step_say_so():
    chained = {name for name, one in REGISTRY.items() if one.needs(one.settings({})).chained}
    assert chained == {"step_gae", "token_gae", "gigpo", "turn_discount", "remax", "reinforce_plus_plus"}
