from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.credit import REGISTRY, CreditInput, get
from core.errors import InvalidInput
from tests.effort import settings


def batch_of(groups: dict[str, list[list[float | None]]]) -> CreditInput:
    """Groups of trajectories of step rewards -> the estimator's input; a trajectory scores the sum of its steps."""
    group, reward, owner, steps = [], [], [], []
    for g, trajectories in enumerate(groups.values()):
        for rewards in trajectories:
            known = [r for r in rewards if r is not None]
            owner += [len(group)] * len(rewards)
            steps += [np.nan if r is None else r for r in rewards]
            group.append(g)
            reward.append(sum(known) if known else np.nan)
    return CreditInput(
        group=np.array(group, dtype=np.int64),
        reward=np.array(reward, dtype=np.float64),
        step_trajectory=np.array(owner, dtype=np.int64),
        step_reward=np.array(steps, dtype=np.float64),
        trajectory_uids=[f"t{i}" for i in range(len(group))],
        prompt_uids=list(groups),
    )


CHECK = {"g": [[0.0, 0.0, 1.0], [0.0, 0.0]]}


@pytest.mark.parametrize(("name", "value"), [("grpo", 0.7071058), ("dr_grpo", 0.5), ("rloo", 1.0)])
def test_check_numbers(name, value):
    credit = get(name).advantages({}, batch_of(CHECK))
    assert credit.trajectory == pytest.approx([value, -value], abs=1e-7)
    assert credit.step == pytest.approx([value] * 3 + [-value] * 2, abs=1e-7)


def by_hand(name: str, rewards: list[float], ddof: int = 1) -> list[float]:
    """One group, by the standard library."""
    n, mean = len(rewards), statistics.fmean(rewards)
    if name == "dr_grpo":
        return [r - mean for r in rewards]
    if name == "rloo":
        return [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    spread = statistics.stdev(rewards) if ddof else statistics.pstdev(rewards)
    return [(r - mean) / (spread + 1e-6) for r in rewards] if n else []


@given(
    st.sampled_from(["grpo", "dr_grpo", "rloo"]),
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, -2.0]), min_size=2, max_size=6), min_size=1, max_size=4),
    st.integers(0, 1),
)
@settings(max_examples=200, deadline=None)
def test_equal_to_the_formula_by_hand(name, groups, ddof):
    batch = batch_of({f"g{i}": [[r] for r in rewards] for i, rewards in enumerate(groups)})
    credit = get(name).advantages({"ddof": ddof} if name == "grpo" else {}, batch)
    expected = [value for rewards in groups for value in by_hand(name, rewards, ddof)]
    assert credit.trajectory == pytest.approx(expected, abs=1e-6)


def test_a_longer_trajectory_votes_once():
    short = get("grpo").advantages({}, batch_of({"g": [[1.0], [0.0], [0.0]]}))
    long = get("grpo").advantages({}, batch_of({"g": [[0.0] * 9 + [1.0], [0.0], [0.0]]}))
    assert long.trajectory == pytest.approx(short.trajectory)


def test_equal_rewards_give_exact_zeros():
    credit = get("grpo").advantages({"eps": 1e-30}, batch_of({"g": [[0.1]] * 3}))
    assert credit.trajectory.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_singleton_rules(name):
    batch = batch_of({"alone": [[0.25]], "pair": [[1.0], [0.0]]})
    with pytest.raises(InvalidInput, match="group alone has 1 of 2"):
        get(name).advantages({}, batch)
    assert get(name).advantages({"singleton": "raw"}, batch).trajectory[0] == 0.25
    assert get(name).advantages({"singleton": "zero"}, batch).trajectory[0] == 0.0


def test_an_unknown_reward_is_named_and_never_zero():
    with pytest.raises(InvalidInput, match="trajectory t1 has no reward"):
        get("grpo").advantages({}, batch_of({"g": [[1.0], [None], [0.0]]}))


def test_sft_selects_and_assigns_nothing():
    sft = get("sft")
    batch = batch_of({"a": [[1.0], [0.2], [0.9]], "b": [[0.1], [0.8]]})
    keep = sft.select
    assert sft.advantages({}, batch) is None
    assert keep(sft.settings({"min_reward": None}), batch).tolist() == [True] * 5
    assert keep(sft.settings({}), batch).tolist() == [True, False, True, False, True], "failures are no examples"
    assert keep(sft.settings({"min_reward": 0.85}), batch).tolist() == [True, False, True, False, False]
    assert keep(sft.settings({"best_of": 1}), batch).tolist() == [True, False, False, False, True]
    assert keep(sft.settings({"best_of": 2, "min_reward": 0.15}), batch).tolist() == [True, False, True, False, True]
    unscored = batch_of({"a": [[None]]})
    assert sft.advantages({"min_reward": None}, unscored) is None
    with pytest.raises(InvalidInput, match="t0 has no reward"):
        sft.advantages({}, unscored)


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("grpo", {"gamma": 1}, "options.gamma"),
        ("grpo", {"ddof": -1}, "options.ddof"),
        ("grpo", {"ddof": 0.5}, "options.ddof"),
        ("grpo", {"eps": "small"}, "options.eps"),
        ("grpo", {"eps": True}, "options.eps"),
        ("rloo", {"singleton": "drop"}, "options.singleton"),
        ("sft", {"best_of": 0}, "options.best_of"),
    ],
)
def test_wrong_options_are_named(name, options, field):
    with pytest.raises(InvalidInput) as caught:
        get(name).settings(options)
    assert caught.value.field == field


def test_unknown_algorithms_are_refused_with_the_list():
    with pytest.raises(InvalidInput) as caught:
        get("ppo")
    assert "grpo" in caught.value.hint
    for name, estimator in REGISTRY.items():
        assert estimator.name == name and estimator.settings({}) is not None
