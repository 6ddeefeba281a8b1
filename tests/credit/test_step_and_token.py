from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.credit import get
from core.credit.chain import discounted, step_rewards
from core.errors import InvalidInput
from tests.effort import settings

from . import brute
from .batches import CHECK, Step, Trajectory, batch_of, groups

EVERY = settings(max_examples=60, deadline=None)
factor = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def estimate(name, data, **options):
    return get(name).advantages(options, batch_of(data))


def test_check_numbers_of_step_gae():
    raw = estimate("step_gae", CHECK, gamma=1.0, lam=0.95, whiten="none")
    assert raw.step == pytest.approx([0.751, 0.58, 0.4, -0.085, -0.3], abs=1e-12)
    assert raw.step_return == pytest.approx([0.951, 0.98, 1.0, 0.015, 0.0], abs=1e-12)
    credit = estimate("step_gae", CHECK, gamma=1.0, lam=0.95)
    assert credit.step == pytest.approx([1.080528, 0.697028, 0.293344, -0.794361, -1.276539], abs=1e-6)
    assert credit.step_return == pytest.approx(raw.step_return), "returns are taken before whitening"
    assert credit.level == "step"


def test_check_numbers_of_gigpo():
    credit = estimate("gigpo", CHECK)
    assert credit.step_return == pytest.approx([0.9025, 0.95, 1.0, 0.0, 0.0], abs=1e-12)
    assert credit.step == pytest.approx([1.4142115, 0.7071058, 0.7071058, -1.4142115, -0.7071058], abs=1e-6)


@given(groups, factor, factor)
@EVERY
def test_step_gae(data, gamma, lam):
    assert estimate("step_gae", data, gamma=gamma, lam=lam).step == pytest.approx(
        brute.step_gae(data, gamma, lam), abs=1e-6
    )


@given(groups, factor, factor)
@EVERY
def test_token_gae(data, gamma, lam):
    credit = estimate("token_gae", data, gamma=gamma, lam=lam)
    assert credit.token == pytest.approx(brute.token_gae(data, gamma, lam), abs=1e-6)
    assert np.isnan(credit.step).all() and credit.level == "token"


@given(groups, factor, st.sampled_from(["trajectory", "step"]))
@EVERY
def test_reinforce_plus_plus(data, gamma, chain):
    credit = estimate("reinforce_plus_plus", data, gamma=gamma, chain=chain)
    token = credit.token if credit.level == "token" else np.repeat(credit.step, brute.counts(data))
    assert token == pytest.approx(brute.reinforce_plus_plus(data, gamma, chain), abs=1e-6)


@given(groups)
@EVERY
def test_reinforce_plus_plus_baseline(data):
    credit = estimate("reinforce_plus_plus_baseline", data)
    assert credit.step == pytest.approx(brute.reinforce_plus_plus_baseline(data), abs=1e-6)
    assert credit.level == "trajectory"


@given(groups)
@EVERY
def test_remax(data):
    assert estimate("remax", data).step == pytest.approx(brute.remax(data), abs=1e-9)
    total = [t.total - t.baseline for t in brute.everyone(data)]
    assert estimate("remax", data, returns="total").trajectory == pytest.approx(total, abs=1e-9)


@given(groups, factor, st.sampled_from(["mean_std_norm", "mean_norm"]), st.sampled_from([None, 0.5, 0.95]))
@EVERY
def test_gigpo(data, gamma, mode, similarity):
    credit = estimate("gigpo", data, gamma=gamma, mode=mode, similarity=similarity, w=0.5)
    # The brute force's mean rounds where ours is exactly flat, so equal members may differ by 1e-16 / (0 + 1e-6).
    assert credit.step == pytest.approx(brute.gigpo(data, gamma, 0.5, mode, similarity), abs=1e-5)


@given(groups, factor, st.sampled_from(["group_mean", "group_norm", "none"]))
@EVERY
def test_turn_discount(data, discount, baseline):
    credit = estimate("turn_discount", data, discount=discount, baseline=baseline)
    assert credit.step == pytest.approx(brute.turn_discount(data, discount, baseline), abs=1e-5)


@given(groups)
@EVERY
def test_distill(data):
    assert estimate("distill", data, coef=0.5).token == pytest.approx(brute.distill(data, 0.5), abs=1e-9)


@given(groups)
@EVERY
def test_dapo_is_grpo_on_groups_with_spread(data):
    dapo, batch = get("dapo"), batch_of(data)
    kept = dapo.select(dapo.settings({}), batch)
    expected = [len({t.total for t in group}) > 1 for group in data for _ in group]
    assert kept.tolist() == expected
    assert dapo.advantages({}, batch).trajectory == pytest.approx(get("grpo").advantages({}, batch).trajectory)


@given(groups, st.sampled_from([0.0, 0.4]))
@EVERY
def test_dpo_pairs(data, margin):
    dpo, batch = get("dpo"), batch_of(data)
    every = dpo.pairs(dpo.settings({"pairing": "all", "margin": margin}), batch)
    assert set(zip(every.chosen.tolist(), every.rejected.tolist(), strict=True)) == brute.dpo_all(data, margin)
    assert (every.margin > margin).all()
    one = dpo.pairs(dpo.settings({"margin": margin}), batch)
    base = 0
    expected = []
    for group in data:
        scores = [t.total for t in group]
        if max(scores) - min(scores) > margin:
            expected.append((base + scores.index(max(scores)), base + scores.index(min(scores))))
        base += len(group)
    assert list(zip(one.chosen.tolist(), one.rejected.tolist(), strict=True)) == expected
    capped = dpo.pairs(dpo.settings({"pairing": "all", "margin": margin, "max_pairs": 1}), batch)
    assert capped.margin.tolist() == one.margin.tolist()
    kept = dpo.select(dpo.settings({"margin": margin}), batch)
    assert set(np.flatnonzero(kept).tolist()) == {i for pair in expected for i in pair}


def test_kto_labels_and_its_undecided_band():
    kto = get("kto")
    batch = batch_of([[Trajectory([Step(r)]) for r in (0.0, 0.5, 0.7, 1.0)]])
    assert kto.labels(kto.settings({}), batch).tolist() == [False, True, True, True]
    band = kto.settings({"threshold": 0.7, "undesirable_below": 0.2})
    assert kto.select(band, batch).tolist() == [True, False, True, True]
    assert kto.select(kto.settings({"threshold": 0.7}), batch).tolist() == [True] * 4


def test_clip_cuts_every_level_and_leaves_returns():
    plain, cut = estimate("step_gae", CHECK, lam=0.95), estimate("step_gae", CHECK, lam=0.95, clip=0.5)
    assert cut.step == pytest.approx(np.clip(plain.step, -0.5, 0.5))
    assert cut.step_return == pytest.approx(plain.step_return)
    assert abs(estimate("token_gae", CHECK, clip=0.1).token).max() <= 0.1


def test_grpo_std_choices():
    batch = batch_of([[Trajectory([Step(1.0)]), Trajectory([Step(0.0)])], [Trajectory([Step(4.0)])] * 2])
    assert get("grpo").advantages({"std": "none"}, batch).trajectory.tolist() == [0.5, -0.5, 0.0, 0.0]
    pooled = (0.5 / 3) ** 0.5 + 1e-6
    assert get("grpo").advantages({"std": "batch"}, batch).trajectory == pytest.approx(
        [0.5 / pooled, -0.5 / pooled, 0, 0]
    )


def test_an_outcome_stands_on_the_last_step_and_adds_up():
    batch = batch_of([[Trajectory([Step(0.25), Step(None), Step(None)], score=1.0)]])
    assert step_rewards(batch).tolist() == [0.25, 0.0, 0.75]


@given(st.lists(st.lists(st.floats(-3, 3), max_size=6), max_size=6), factor)
@EVERY
def test_discounted_sums(parts, gamma):
    flat = np.array([x for part in parts for x in part])
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    expected = [y for part in parts for y in brute.returns(part, gamma)]
    assert discounted(flat, np.cumsum(lengths) - lengths, lengths, gamma) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("step_gae", {"value": None}, "step s0 of trajectory t0 lacks metadata.value"),
        ("step_gae", {"value": [0.1, np.nan, 0.2, 0.3, 0.4]}, "step s1 of trajectory t0 lacks metadata.value"),
        ("token_gae", {"token_value": [0.1, 0.2, 0.3, np.nan, 0.4]}, "step s3 of trajectory t1 lacks metadata.token_v"),
        ("gigpo", {"anchor": ["a", None, "b", "c", "d"]}, "step s1 of trajectory t0 lacks metadata.anchor"),
        ("remax", {"baseline": [np.nan, 0.0]}, "trajectory t0 lacks metadata.reward_baseline"),
        ("distill", {"teacher_logprob": None}, "step s0 of trajectory t0 lacks metadata.teacher_logprobs"),
        ("step_gae", {"missing": [None, "no step 1"]}, "trajectory t1: no step 1"),
        ("token_gae", {"missing": [None, "no step 1"]}, "trajectory t1: no step 1"),
    ],
)
def test_what_is_lacking_is_named_by_uid(name, change, message):
    arrays = {
        k: np.array(v) if isinstance(v, list) and k not in ("anchor", "missing") else v for k, v in change.items()
    }
    batch = replace(batch_of(CHECK), **arrays)
    with pytest.raises(InvalidInput) as caught:
        get(name).advantages({}, batch)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["step_gae", "token_gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_one_value_cannot_be_whitened_and_gives_zero(name):
    options = {"singleton": "raw"} if name.endswith("baseline") else {}
    credit = estimate(name, [[Trajectory([Step(1.0, 0.5)])]], **options)
    assert (credit.step if credit.token is None else credit.token).tolist() == [0.0]


@pytest.mark.parametrize("name", ["gigpo", "reinforce_plus_plus_baseline"])
def test_singletons_are_refused_unless_a_rule_allows_them(name):
    alone = [[Trajectory([Step(0.25)])], CHECK[0]]
    with pytest.raises(InvalidInput, match="group g0 has 1 of 2"):
        estimate(name, alone)
    assert np.isfinite(estimate(name, alone, singleton="raw").step).all()
    if name == "gigpo":
        assert estimate(name, alone, singleton="raw").step[0] == 0.25
        assert estimate(name, alone, singleton="zero").step[0] == 0.0
