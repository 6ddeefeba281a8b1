"""A label's preview is what applying the label gives, whatever reward policy the channel has adopted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.batch.plan import count_plan, plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.types import Annotation, View
from tests.batch.keeping_all import SFT_ALL
from tests.effort import settings

from .conftest import T0, done, rollout

UIDS = [f"{group}{n}" for group in "AB" for n in range(3)]
SOURCES = ("human", "verifier")
POLICIES: list[Any] = [
    None,
    {"rule": "last"},
    {"rule": "first"},
    {"rule": "precedence", "sources": ["verifier", "human"]},
    {"rule": "precedence", "sources": ["steps"]},
    {"rule": "weighted", "weights": {"human": 1.0, "verifier": 3.0}},
]
RECIPES: list[dict[str, Any]] = [
    {"algorithm": "grpo", "n_rollouts": 2},
    {"algorithm": "grpo", "drop_flat_groups": True},
    SFT_ALL,
    {"algorithm": "grpo", "rewards": ["human", "complete"]},
    {"algorithm": "step_gae", "options": {}},
    {**SFT_ALL, "view": "kept"},
]
VALUES = st.one_of(
    st.tuples(st.just("reward"), st.sampled_from([None, 0.0, 0.5, 1.0])),
    st.tuples(st.just("quality"), st.sampled_from([None, "good", "bad"])),
    st.tuples(st.just("trainable"), st.sampled_from([None, True, False])),
    st.tuples(st.just("correct"), st.sampled_from([None, True, False])),
    st.tuples(st.just("tag"), st.sampled_from(["kept", "-kept"])),
)
LABELS = st.tuples(
    st.sampled_from(["step", "trajectory"]),
    VALUES,
    st.lists(st.sampled_from(UIDS), min_size=1, max_size=3, unique=True),
    st.sampled_from(SOURCES),
)


def filled() -> Pool:
    opened = Pool.open(":memory:", clock=lambda: T0)
    for n, uid in enumerate(UIDS):
        steps = rollout(uid, uid[0], at=n, rewards=[0.0, float(n % 2)])
        opened.steps.append(steps, completions=done(uid, reward=float(n % 2) if n % 3 else None))
    opened.views.save("kept", View({"tags": "kept"}))
    return opened


def opinions(label: tuple[str, tuple[str, Any], list[str], str]) -> list[Annotation]:
    target, (kind, value), uids, source = label
    named = [uid if target == "trajectory" else f"{uid}.0" for uid in uids]
    return [Annotation(kind, value, "ann", source, T0, **{f"{target}_uid": uid}) for uid in named]


def adopt(pool: Pool, policy: Any) -> None:
    if policy is not None:
        pool.rewards.save("mine", policy)
        pool.rewards.adopt("train", "mine")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(LABELS, max_size=3),
    st.sampled_from(POLICIES),
    st.sampled_from(RECIPES),
    LABELS,
    st.booleans(),
)
def test_a_preview_is_what_applying_gives(
    earlier: list[Any], policy: Any, recipe: dict[str, Any], label: Any, whole: bool
) -> None:
    pool = filled()
    try:
        adopt(pool, policy)
        for one in earlier:
            pool.labels.annotate(opinions(one))
        wanted = parse_recipe(recipe)
        before, n_writes = plan(pool, View(), wanted).hash, pool.n_writes
        target, (kind, value), uids, source = label
        view = View({"trajectory_uid": uids})
        if whole:
            with pool.labels.previewing_view(view, target, kind, value, source=source) as n_previewed:
                previewed, counts = plan(pool, View(), wanted), count_plan(pool, View(), wanted)
        else:
            with pool.labels.previewing(opinions(label)):
                previewed, counts = plan(pool, View(), wanted), count_plan(pool, View(), wanted)
        assert (plan(pool, View(), wanted).hash, pool.n_writes) == (before, n_writes), "a preview leaves nothing"
        if whole:
            assert pool.labels.annotate_view(view, target, kind, value, author="ann", source=source)[1] == n_previewed
        else:
            pool.labels.annotate(opinions(label))
        applied = plan(pool, View(), wanted)
        assert previewed.hash == applied.hash
        assert previewed.counts == applied.counts == counts
    finally:
        pool.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    opened = filled()
    yield opened
    opened.close()


def test_a_reward_that_the_adopted_policy_does_not_hear_changes_nothing(pool: Pool) -> None:
    """The human's word is previewed as what it counts for: here nothing, since the steps' rewards decide."""
    adopt(pool, {"rule": "precedence", "sources": ["steps"]})
    recipe = parse_recipe({"algorithm": "grpo", "drop_flat_groups": True})
    before = count_plan(pool, View(), recipe)
    flat = [Annotation("reward", 1.0, "ann", "human", T0, trajectory_uid=uid) for uid in UIDS]
    with pool.labels.previewing(flat):
        assert count_plan(pool, View(), recipe) == before
    assert before["n_groups"] == 2


def test_other_threads_and_answers_that_are_kept_know_nothing_of_a_preview(pool: Pool) -> None:
    import threading

    bad = [Annotation("quality", "bad", "ann", "human", T0, trajectory_uid="A0")]
    view = View({"trajectory_quality": "bad"})
    seen: list[int] = []
    with pool.labels.previewing(bad):
        assert len(pool.training.plan_rows(view, channel="train")) == 2
        other = threading.Thread(target=lambda: seen.append(pool.steps.count(view)))
        other.start()
        other.join(60)
        assert pool.trajectories.count(view) == 1, "asked, and not kept"
    assert seen == [0] and pool.steps.count(view) == 0 == pool.trajectories.count(view)


def test_a_preview_of_what_can_not_be_said_is_refused_as_the_label(pool: Pool) -> None:
    for refused, annotation in (
        (NotFound, Annotation("quality", "bad", "ann", "human", T0, trajectory_uid="nobody")),
        (InvalidInput, Annotation("quality", "fine", "ann", "human", T0, trajectory_uid="A0")),
    ):
        with pytest.raises(refused), pool.labels.previewing([annotation]):
            raise AssertionError("not reached")
    pool.labels.annotate([Annotation("quality", "bad", "ann", "human", T0, trajectory_uid="A0")])
    assert pool.steps.count(View({"trajectory_quality": "bad"})) == 2
