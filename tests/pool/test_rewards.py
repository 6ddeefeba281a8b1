"""Reward policies against a plain reading of their rules, alone and adopted, whatever is said, undone and redone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.rewards.policy import combination, parse_policy
from core.types import Annotation, Step, View
from tests.effort import settings

EXAMPLE = count()
SOURCES = ("verifier", "judge", "human")
POLICIES: list[dict[str, Any]] = [
    {"rule": "last"},
    {"rule": "first"},
    {"rule": "last", "sources": ["judge", "complete"]},
    {"rule": "first", "sources": ["human", "steps"]},
    {"rule": "precedence", "sources": ["human", "judge", "complete"]},
    {"rule": "precedence", "sources": ["nobody"]},
    {"rule": "weighted", "weights": {"judge": 1, "human": 3}},
    {"rule": "weighted", "weights": {"verifier": 2, "complete": 0.5, "steps": 1}, "missing": "unscored"},
]


def words(model: dict[str, Any], uid: str) -> list[tuple[str, float | None]]:
    """(source, value) of everything said of a trajectory that is not undone, oldest first; None withdraws."""
    rewards: list[tuple[str, float | None]] = []
    own = [s["reward"] for s in model["steps"].get(uid, ()) if s["reward"] is not None]
    if own:
        rewards.append(("steps", sum(own)))
    rewards += [("complete", value) for value in model["complete"].get(uid, ())]
    for action in model["actions"]:
        if not action["undone"]:
            rewards += [(source, value) for one, source, value in action["words"] if one == uid]
    return rewards


def by_rule(policy: dict[str, Any], labels: list[tuple[str, float | None]]) -> float | None:
    """The rules as RULES words them."""
    last = {source: value for source, value in labels}
    standing = {source for source, value in last.items() if value is not None}
    heard = [(source, value) for source, value in labels if source in standing and value is not None]
    if policy["rule"] == "weighted":
        weights = policy["weights"]
        counted = [source for source in weights if source in standing]
        if not counted or (policy.get("missing") == "unscored" and len(counted) < len(weights)):
            return None
        return sum(weights[s] * last[s] for s in counted) / sum(weights[s] for s in counted)
    if policy["rule"] == "precedence":
        return next((last[source] for source in policy["sources"] if source in standing), None)
    if policy.get("sources"):
        heard = [(source, value) for source, value in heard if source in policy["sources"]]
    if not heard:
        return None
    return heard[0][1] if policy["rule"] == "first" else heard[-1][1]


def by_default(labels: list[tuple[str, float | None]]) -> float | None:
    """The newest annotation; where it withdraws or there is none what was said at completion, then the steps' sum."""
    annotated = [value for source, value in labels if source in SOURCES]
    last = dict(labels)
    for value in (annotated[-1] if annotated else None, last.get("complete"), last.get("steps")):
        if value is not None:
            return value
    return None


VALUES = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0, -2.0]))
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 2), st.sampled_from(SOURCES), VALUES),
        st.tuples(st.just("switch"), st.integers(0, 8)),
        st.tuples(st.just("adopt"), st.one_of(st.none(), st.integers(0, len(POLICIES) - 1))),
        st.tuples(st.just("complete"), st.integers(0, 2), st.sampled_from([0.0, 0.5])),
        st.tuples(st.just("step"), st.integers(0, 2), VALUES),
        st.tuples(st.just("rebuild")),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Pool]:
    """One pool for all examples, each in a channel of its own: opening one costs more than an example."""
    opened = Pool.open(":memory:", memory="300MB", threads=1, clock=lambda: 1.0)
    for i, one in enumerate(POLICIES):
        opened.rewards.save(f"p{i}", one)
    yield opened
    opened.close()


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=MOVES, checked=st.integers(0, len(POLICIES) - 1))
def test_rewards_are_what_the_rules_say(moves: list[tuple[Any, ...]], checked: int, shared: Pool) -> None:
    pool, channel = shared, f"channel-{next(EXAMPLE)}"
    model: dict[str, Any] = {"steps": {}, "complete": {}, "actions": []}
    policy: dict[str, Any] | None = None
    uids = [f"{channel}-{k}" for k in range(3)]

    def add(uid: str, reward: float | None) -> Step:
        own = model["steps"].setdefault(uid, [])
        own.append({"reward": reward})
        return Step(
            f"{uid}.{len(own)}", uid, channel, len(own), 1.0, channel=channel, prompt_ids=[1], response_ids=[2],
            reward=reward,
        )  # fmt: skip

    def now() -> dict[str, float | None]:
        view = View({"channel": channel})
        return {row["trajectory_uid"]: row["reward"] for row in pool.trajectories.page(view, limit=None).to_pylist()}

    pool.steps.append([add(uid, None) for uid in uids])
    for move in moves:
        uid = uids[move[1]] if move[0] in ("say", "complete", "step") else ""
        if move[0] == "say":
            action = pool.labels.annotate([Annotation("reward", move[3], "a", move[2], 1.0, trajectory_uid=uid)])
            model["actions"].append({"uid": action, "undone": False, "words": [(uid, move[2], move[3])]})
        elif move[0] == "switch" and move[1] < len(model["actions"]):
            action = model["actions"][move[1]]
            (pool.labels.redo if action["undone"] else pool.labels.undo)(action["uid"])
            action["undone"] = not action["undone"]
        elif move[0] == "adopt":
            policy = None if move[1] is None else POLICIES[move[1]]
            pool.rewards.adopt(channel, None if move[1] is None else f"p{move[1]}")
        elif move[0] == "complete":
            pool.steps.append([], completions=[{"trajectory_uid": uid, "reward": move[2]}])
            model["complete"].setdefault(uid, []).append(move[2])
        elif move[0] == "step":
            pool.steps.append([add(uid, move[2])])
        elif move[0] == "rebuild":
            pool.integrity.rebuild_state()
        rewards = now()
        for one in uids:
            labels = words(model, one)
            expected = by_default(labels) if policy is None else by_rule(policy, labels)
            assert rewards[one] == (None if expected is None else pytest.approx(expected)), (one, labels)
    rule = POLICIES[checked]
    expected = {uid: by_rule(rule, words(model, uid)) for uid in uids}
    scored = {uid: value for uid, value in expected.items() if value is not None}
    got = {
        row["trajectory_uid"]: row["reward"]
        for row in pool.rewards.by_policy(f"p{checked}", channel=channel).to_pylist()
    }
    assert got == pytest.approx(scored)
    before = now()
    changed = {uid for uid in uids if before[uid] != got.get(uid)}
    preview = pool.rewards.preview(rule, channel=channel)
    assert preview["counts"]["n_trajectories_changed"] == len(changed)
    assert {row["trajectory_uid"] for row in preview["changes"]} == changed
    assert sum(row["n_after"] for row in preview["histogram"]) == len(scored)
    assert sum(row["n_before"] for row in preview["histogram"]) == sum(v is not None for v in before.values())


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    opened = Pool.open(tmp_path / "pool.duckdb", memory="300MB", threads=1, clock=lambda: 1.0)
    yield opened
    opened.close()


def test_policies_are_versions_and_a_name_means_its_newest(pool: Pool) -> None:
    assert pool.rewards.save("x", {"rule": "last"}) == 1
    assert pool.rewards.save("x", {"rule": "last"}) == 1
    assert pool.rewards.save("x", {"rule": "first"}, author="ann") == 2
    assert [(row["name"], row["version"]) for row in pool.rewards.all()] == [("x", 2), ("x", 1)]
    assert pool.rewards.resolve("x") == {"rule": "first", "sources": [], "name": "x", "version": 2}
    assert pool.rewards.resolve("x@1")["rule"] == "last"
    assert pool.rewards.resolve(["judge"]) == {"rule": "precedence", "sources": ["judge"]}
    for missing in ("y", "x@3"):
        with pytest.raises(NotFound):
            pool.rewards.resolve(missing)
    with pytest.raises(NotFound):
        pool.rewards.adopt("train", "y")
    assert pool.rewards.adopted("train") is None
    adopted = pool.rewards.adopt("train", "x", 1, author="ann")
    assert adopted is not None
    assert (adopted["name"], adopted["version"], adopted["author"]) == ("x", 1, "ann")
    assert pool.rewards.adopt("train", None) is None


def test_an_adopted_policy_reaches_groups_and_difficulty(pool: Pool) -> None:
    for uid in "ab":
        pool.steps.append([Step(f"s{uid}", uid, "p", 0, 1.0, prompt_ids=[1], response_ids=[2])])
        pool.labels.annotate([Annotation("reward", 1.0, "x", "judge", 1.0, trajectory_uid=uid)])
        pool.labels.annotate([Annotation("reward", float(uid == "a"), "x", "human", 1.0, trajectory_uid=uid)])
    assert pool.groups.page().to_pylist()[0]["reward_mean"] == 0.5
    pool.rewards.save("judge", {"rule": "precedence", "sources": ["judge"]})
    counts = pool.rewards.preview("judge", channel="train")["counts"]
    assert (counts["n_trajectories_changed"], counts["n_groups_changed"], counts["n_newly_flat"]) == (1, 1, 1)
    assert (counts["mean_before"], counts["mean_after"]) == (0.5, 1.0)
    pool.rewards.adopt("train", "judge")
    (group,) = pool.groups.page().to_pylist()
    assert (group["reward_mean"], group["zero_variance"]) == (1.0, True)
    assert [row["source"] for row in pool.rewards.sources(channel="train")] == ["human", "judge"]
    pool.rewards.adopt("train", None)
    assert pool.groups.page().to_pylist()[0]["reward_mean"] == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"rule": "mean"}, {"rule": "precedence"}, {"rule": "precedence", "sources": ["a", "a"]},
        {"rule": "precedence", "sources": "judge"}, {"rule": "weighted"}, {"rule": "weighted", "weights": {"a": 0}},
        {"rule": "weighted", "weights": {"a": True}}, {"rule": "weighted", "weights": {"a": 1}, "missing": "zero"},
        {"rule": "last", "weights": {"a": 1}}, {"rule": "last", "other": 1}, {"rule": "last", "sources": [""]},
    ],
)  # fmt: skip
def test_what_is_no_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        parse_policy(wrong)


@pytest.mark.parametrize(
    ("weights", "rewards", "expected"),
    [
        ("code_only", {"code": 0.25, "judge": 1.0}, 0.25),
        ("mean", {"code": 0.25, "judge": 1.0}, 0.625),
        ("code_0.7_rubric_0.3", {"code": 0.5, "judge": 1.0}, 0.7 * 0.5 + 0.3),
        ({"code": 1, "rubric": 3}, {"code": 0.0, "judge": 1.0}, 0.75),
        ("mean", {"code": 0.25}, None),
    ],
)
def test_named_combinations_of_check_and_rubric(weights, rewards, expected):
    """The weights by hand: a combination needs both rewards."""
    policy = parse_policy(combination(weights, "code", "judge"))
    used = {name: rewards.get(name) for name in policy.weights or policy.sources}
    known = {name: value for name, value in used.items() if value is not None}
    total = sum(policy.weights.get(name, 1.0) for name in used)
    value = sum(policy.weights.get(name, 1.0) * one for name, one in known.items()) / total
    assert (value if len(known) == len(used) else None) == (None if expected is None else pytest.approx(expected))
    assert policy.rule == "precedence" or policy.missing == "unscored"


@pytest.mark.parametrize("weights", ["half", (0, 0), (-1, 1), (float("nan"), 1)])
def test_wrong_combinations_are_refused(weights):
    with pytest.raises(InvalidInput):
        combination(weights, "code", "judge")
