"""The review queue's orders against the same rules said in Python, over random labels and rewards."""

from __future__ import annotations

import random
from statistics import fmean, pstdev

import pytest

from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.pool.review import ORDERS
from core.types import Annotation, Step, View

GROUPS, ROLLOUTS = 5, 4
UIDS = [f"t{g}{r}" for g in range(GROUPS) for r in range(ROLLOUTS)]


def labelled(path, seed: int):
    """A pool of random rewards and labels by two reviewers, some undone; what stands of them."""
    chance = random.Random(seed)
    pool = Pool.open(path)
    pool.steps.append(
        [
            Step(step_uid=f"{uid}.0", trajectory_uid=uid, prompt_uid=f"g{uid[1]}", step_index=0, created_at=1e9 + place)
            for place, uid in enumerate(UIDS)
        ],
    )
    rewards = {uid: chance.choice((0.0, 0.25, 1.0)) for uid in UIDS}
    pool.labels.annotate(
        [Annotation("reward", value, "x", "test", 1e9, trajectory_uid=uid) for uid, value in rewards.items()]
    )
    standing: dict[str, dict[str, str]] = {uid: {} for uid in UIDS}
    newest: dict[str, str | None] = dict.fromkeys(UIDS)
    for _ in range(40):
        uid, author = chance.choice(UIDS), chance.choice(("anna", "ben"))
        value = chance.choice(("good", "bad", "unsure"))
        action = pool.labels.annotate([Annotation("quality", value, author, "test", 1e9, trajectory_uid=uid)])
        if chance.random() < 0.3:
            pool.labels.undo(action)
        else:
            standing[uid][author] = value
            newest[uid] = value
    return pool, rewards, standing, newest


def deviations(uid: str, rewards) -> float:
    group = [rewards[other] for other in UIDS if other[1] == uid[1]]
    return (rewards[uid] - fmean(group)) / pstdev(group) if pstdev(group) else float("-inf")


@pytest.mark.parametrize("seed", range(4))
def test_orders_are_the_rules(tmp_path, seed):
    pool, rewards, standing, newest = labelled(tmp_path / "p.duckdb", seed)

    def rate(uid: str) -> float:
        return fmean(rewards[other] > 0.5 for other in UIDS if other[1] == uid[1])

    def contradicts(uid: str) -> bool:
        return (newest[uid] == "good" and rewards[uid] <= 0.5) or (newest[uid] == "bad" and rewards[uid] > 0.5)

    late = {uid: -place for place, uid in enumerate(UIDS)}
    rules = {
        "newest": lambda uid: late[uid],
        "uncertain": lambda uid: (newest[uid] != "unsure", abs(rate(uid) - 0.5), late[uid]),
        "disagreeing": lambda uid: (len(set(standing[uid].values())) < 2, not contradicts(uid), late[uid]),
        "outliers": lambda uid: (-round(deviations(uid, rewards), 9), late[uid]),
    }
    assert set(rules) == set(ORDERS)
    for order, rule in rules.items():
        if order == "disagreeing":
            # An unlabelled item contradicts nothing, and comes after those that are known to agree.
            wanted = sorted(UIDS, key=lambda uid: (rule(uid)[:2], newest[uid] is None, late[uid]))
        else:
            wanted = sorted(UIDS, key=rule)
        rows = pool.review.queue(View(), "trajectory", order, author="anna").to_pylist()
        assert [row["uid"] for row in rows] == wanted, order
        assert {row["uid"]: row["mine"] for row in rows} == {uid: standing[uid].get("anna") for uid in UIDS}
        assert {row["uid"]: row["quality"] for row in rows} == newest
    pool.close()


def test_steps_follow_their_trajectory_and_groups_their_best(tmp_path):
    pool, rewards, standing, _ = labelled(tmp_path / "p.duckdb", 1)
    best = sorted(range(GROUPS), key=lambda g: -max(deviations(uid, rewards) for uid in UIDS if uid[1] == str(g)))
    groups = pool.review.queue(View(), "group", "outliers", author="anna")["uid"].to_pylist()
    spread = [max(deviations(uid, rewards) for uid in UIDS if uid[1] == name[1]) for name in groups]
    assert spread == sorted(spread, reverse=True) and set(groups) == {f"g{g}" for g in best}
    whole = [name for name in groups if all(standing[uid].get("ben") for uid in UIDS if uid[1] == name[1])]
    rows = pool.review.queue(View(), "group", "newest", author="ben").to_pylist()
    assert {row["uid"] for row in rows if row["mine"]} == set(whole)
    steps = pool.review.queue(View({"prompt_uid": "g1"}), "step", "newest", author="anna", limit=3)["uid"].to_pylist()
    assert steps == ["t13.0", "t12.0", "t11.0"]
    pool.close()


def test_what_stands_of_one_item(tmp_path):
    pool, rewards, _, newest = labelled(tmp_path / "p.duckdb", 2)
    for tag, uid in (("a", "t00"), ("a", "t01"), ("a", "t02"), ("a", "t03"), ("b", "t01")):
        pool.labels.annotate([Annotation("tag", tag, "anna", "test", 1e9, trajectory_uid=uid)])
    assert pool.review.standing("group", "g0")["tags"] == ["a"]
    one = pool.review.standing("trajectory", "t01")
    assert (one["tags"], one["reward"], one["quality"]) == (["a", "b"], rewards["t01"], newest["t01"])
    assert pool.review.standing("step", "t01.0")["original_reward"] is None
    for level in ("step", "trajectory", "group"):
        with pytest.raises(NotFound):
            pool.review.standing(level, "nobody")
    with pytest.raises(InvalidInput, match="No order"):
        pool.review.queue(View(), "step", "best", author="anna")
    with pytest.raises(InvalidInput, match="reviewed by"):
        pool.review.queue(View(), "token", "newest", author="anna")
    pool.close()
