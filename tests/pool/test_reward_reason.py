"""Why a trajectory has its reward, against what was said of it, by hand; and names of conditions on trajectories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from core.credit import FIELDS, get
from core.credit.fields import missing_fields
from core.errors import InvalidInput
from core.pool import Pool
from core.pool.query.where_levels import ambiguous_names, for_trajectories
from core.types import Annotation, Step, View

START = 1_700_000_000.0
REPORT = {
    "verifier": "tests_pass",
    "reward_components": {"tests": 0.75, "style": 1},
    "reward_reason": "one test failed",
    "reward_details": {"failed": ["test_a"]},
}


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two trajectories of two steps in two groups; the first is scored at completion, the second by its steps."""
    made = Pool.open(":memory:", clock=lambda: START)
    steps = [
        Step(
            step_uid=f"{uid}.{k}",
            trajectory_uid=uid,
            prompt_uid=f"p-{uid}",
            step_index=k,
            created_at=START + k,
            agent="claw" if k else "codex",
            prompt_ids=[1],
            response_ids=[2],
            reward=0.25 if uid == "b" else None,
            metadata={"anchor": "x"} if uid == "b" and k else {},
        )
        for uid in ("a", "b")
        for k in range(2)
    ]
    made.steps.append(
        steps,
        completions=[
            {"trajectory_uid": "a", "reward": 0.75, "outcome": "finished", "metadata": REPORT},
            {"trajectory_uid": "b"},
        ],
    )
    yield made
    made.close()


def label(pool: Pool, value: float | None, author: str, **more: Any) -> str:
    return pool.labels.annotate([Annotation("reward", value, author, "human", START, trajectory_uid="a", **more)])


def test_a_reward_names_its_source_components_and_reason(pool):
    reasons = pool.rewards.reasons(["a", "b", "nobody"])
    assert set(reasons) == {"a", "b"}
    a, b = reasons["a"], reasons["b"]
    assert (a.reward, a.in_effect.source, a.in_effect.value, a.in_effect.reason) == (
        0.75, "complete", 0.75, "one test failed",
    )  # fmt: skip
    assert (a.verifier, a.components, a.details) == (
        "tests_pass", {"tests": 0.75, "style": 1.0}, {"failed": ["test_a"]},
    )  # fmt: skip
    assert (a.overridden, a.policy, a.outcome) == (None, None, "finished")
    assert (b.reward, b.in_effect.source, b.in_effect.value, b.verifier) == (0.5, "steps", 0.5, None)


def test_an_override_shows_the_captured_reward_until_it_is_undone_or_withdrawn(pool):
    first = label(pool, 0.0, "ann", note="it cheated")
    label(pool, 1.0, "bob")
    reason = pool.rewards.reasons(["a"])["a"]
    assert reason.reward == pool.trajectories.get("a", tokens=False)["reward"] == 1.0
    assert (reason.in_effect.author, reason.overridden.value) == ("bob", 0.75)
    assert [(one.author, one.value, one.reason) for one in reason.given[:2]] == [
        ("bob", 1.0, None),
        ("ann", 0.0, "it cheated"),
    ]
    pool.labels.undo(first)
    assert [one.author for one in pool.rewards.reasons(["a"])["a"].given] == ["bob", None]
    label(pool, None, "bob")
    reason = pool.rewards.reasons(["a"])["a"]
    assert reason.reward == pool.trajectories.get("a", tokens=False)["reward"] == 0.75
    assert (reason.in_effect.source, reason.overridden) == ("complete", None)


def test_under_a_policy_no_single_reward_counts(pool):
    label(pool, 0.0, "ann")
    pool.rewards.save("both", {"rule": "weighted", "weights": {"human": 1, "complete": 1}})
    pool.rewards.adopt("train", "both", 1)
    reason = pool.rewards.reasons(["a"])["a"]
    assert (reason.reward, reason.policy, reason.in_effect) == (0.375, "both v1", None)
    assert {one.source: one.value for one in reason.given} == {"human": 0.0, "complete": 0.75}


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("reward < 0.5", "trajectory_reward < 0.5"),
        ("Reward<0.5 and QUALITY = 'good'", "trajectory_reward<0.5 and trajectory_quality = 'good'"),
        ("step_reward > 0 or agent = 'reward'", "step_reward > 0 or agent = 'reward'"),
        ("agent = 'é' and \"reward\" is null -- reward", "agent = 'é' and trajectory_reward is null -- reward"),
        ("abs(reward - 1) in (0, n_tokens)", "abs(trajectory_reward - 1) in (0, trajectory_tokens)"),
        ("", ""),
    ],
)
def test_names_on_trajectories_mean_the_trajectorys(pool, typed, written):
    assert for_trajectories(typed) == written
    assert ambiguous_names(written) == []
    if written:
        assert pool.steps.count(View(where=written)) == pool.steps.count(View(where=for_trajectories(written)))


def test_a_steps_own_reward_keeps_a_name(pool):
    assert pool.steps.count(View(where="step_reward = 0.25")) == 2
    assert pool.steps.count(View(where="trajectory_reward = 0.75")) == 2


@pytest.mark.parametrize("text", ["reward <", "reward < 1)", "agent > 5", "nothing = 1"])
def test_an_error_of_a_condition_shows_nothing_that_was_not_typed(pool, text):
    with pytest.raises(InvalidInput) as error:
        pool.steps.count(View(where=text))
    assert not any(word in f"{error.value.message}" for word in ("SELECT", "step_state", "s.agent", "LINE"))


def test_facets_of_trajectories_count_each_once(pool):
    counted: dict[str, set[str]] = defaultdict(set)
    for step in pool.steps.page(limit=None).to_pylist():
        counted[step["agent"]].add(step["trajectory_uid"])
    facets = pool.stats.trajectory_facets(View(), ["agent", "findings"])
    assert dict(facets["agent"]) == {agent: len(uids) for agent, uids in counted.items()}
    everything = Counter(name for row in pool.trajectories.page(limit=None).to_pylist() for name in row["findings"])
    assert set(dict(facets["findings"])) <= set(everything)


def test_fields_that_no_step_has_are_named_once(pool):
    assert pool.training.fields_present("train", ["anchor", "value", "baseline"]) == {"anchor"}
    assert pool.training.fields_present("nowhere", ["anchor"]) == set()
    lacks = [f"step s{k} of trajectory t lacks {FIELDS['anchor']}" for k in range(9)]
    fields, others = missing_fields([*lacks, "group g has 1 of 2 needed trajectories"])
    assert [(one.need, one.example) for one in fields] == [("anchor", "step s0 of trajectory t")]
    assert others == ["group g has 1 of 2 needed trajectories"]
    assert set(get("gigpo").needs(get("gigpo").settings({})).fields) == {"anchor"}
