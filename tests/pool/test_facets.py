"""Facets against counting by hand; answers are kept while nothing is written, and not a moment longer."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.pool import Pool
from core.pool.cache.answercache import MAX_ANSWERS, AnswerCache
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.facets import count_by_sql
from core.types import Annotation, Step, View
from tests.effort import settings

NOW = 1e9
COUNTED = (
    "channel", "source", "agent", "run", "model", "engine", "token_source", "identity_source", "policy_version",
    "call_kind", "transition", "status", "finish_reason", "trainable", "quality", "correct", "is_last",
    "trajectory_quality", "complete", "n_steps", "difficulty", "staleness", "findings", "tags", "tool_names",
    "trajectory_correct", "step_index", "prompt_uid",
)  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Any:
    rng = random.Random(3)
    made = Pool.open(":memory:", clock=lambda: NOW)
    made.steps.append(
        [
            Step(
                f"s{i}", f"t{i // 5}", f"p{i // 20}", i % 5, NOW + i,
                channel=rng.choice(["train", "val"]), agent=rng.choice([None, "a", "b"]),
                model=rng.choice(["m", "n"]), policy_version=rng.choice([None, 1, 2, 3]),
                metadata={} if i % 3 else {"run": f"r{i % 4}"},
                status=rng.choice(["ok", "error"]), finish_reason=rng.choice([None, "stop", "length"]),
                response_message={"content": "x", "tool_calls": [{"function": {"name": rng.choice("fgh")}}]},
            )
            for i in range(200)
        ],
        completions=[{"trajectory_uid": f"t{i}", "reward": rng.choice([0.0, 1.0])} for i in range(0, 40, 3)],
    )  # fmt: skip
    opinions = [("tag", "x"), ("tag", "y"), ("quality", "good"), ("correct", False), ("trainable", False)]
    for kind, value in opinions:
        made.labels.annotate(
            [Annotation(kind, value, "a", "h", NOW, step_uid=f"s{rng.randrange(200)}") for _ in range(40)]
        )
        made.labels.annotate(
            [Annotation(kind, value, "a", "h", NOW, trajectory_uid=f"t{rng.randrange(40)}") for _ in range(5)]
        )
    yield made
    made.close()


def by_hand(rows: list[dict[str, Any]], name: str) -> list[tuple[Any, int]]:
    values = [value for row in rows for value in (row[name] if STEP_COLUMNS[name].kind == "list" else [row[name]])]
    counts = Counter(values).items()
    return sorted(counts, key=lambda item: (-item[1], item[0] is None, item[0]))


views = st.builds(
    View,
    st.fixed_dictionaries(
        {},
        optional={
            "channel": st.sampled_from(["train", "val"]),
            "agent": st.sampled_from([["a", None], "b", []]),
            "findings": st.sampled_from(["truncated", "looping", {"none": ["repeated_step"]}]),
            "tags": st.just("x"),
            "staleness": st.just([0, 1]),
            "complete": st.booleans(),
            "difficulty": st.just([0.1, 1]),
        },
    ),
    st.sampled_from(
        ["", "step_index > 1", "staleness = 0 OR trajectory_reward > 0.5", "agent = 'a' AND len(tags) = 0"]
    ),
)


@given(views, st.lists(st.sampled_from(COUNTED), unique=True))
@settings(max_examples=40, deadline=None)
def test_every_facet_counts_what_the_view_holds(pool: Pool, view: View, names: list[str]) -> None:
    rows = pool.steps.page(view, limit=None).to_pylist()
    facets = pool.stats.facets(view, names)
    assert list(facets) == names
    with pool._db.read() as cursor:
        by_sql = count_by_sql(cursor, view, names, 200)  # as while the pool is written to
    for name in names:
        assert facets[name] == by_sql[name] == by_hand(rows, name)


def test_facets_of_everything_in_every_column(pool: Pool) -> None:
    rows = pool.steps.page(limit=None).to_pylist()
    assert pool.stats.facets(View(), COUNTED) == {name: by_hand(rows, name) for name in COUNTED}
    with pytest.raises(InvalidInput, match="nope"):
        pool.stats.facets(View(), ["channel", "nope"])
    with pytest.raises(InvalidInput) as raised:
        pool.stats.facets(View(where="agent > 3"), COUNTED)
    assert raised.value.field == "where"


def test_answers_follow_every_write() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    view = View({"quality": "good"})

    def facet_counts() -> tuple[int, list, int]:
        facets = pool.stats.facets(View(), ["quality"])["quality"]
        return pool.steps.count(view), facets, pool.stats.totals()["n_annotations"]

    assert facet_counts() == (0, [], 0)
    pool.steps.append([Step("s", "t", "p", 0, NOW)])
    assert facet_counts() == (0, [(None, 1)], 0)
    action = pool.labels.annotate([Annotation("quality", "good", "a", "h", NOW, step_uid="s")])
    for _ in range(2):
        assert facet_counts() == (1, [("good", 1)], 1)
    pool.stats.facets(View(), ["quality"])["quality"].clear()  # what a caller does to its answer is its own
    assert facet_counts() == (1, [("good", 1)], 1)
    pool.labels.undo(action)
    assert facet_counts() == (0, [(None, 1)], 1)
    pool.close()


def test_an_answer_from_before_a_write_is_not_kept_for_after() -> None:
    kept = AnswerCache()
    wanted: list[int] = []

    def ask(value: int) -> int:
        wanted.append(value)
        return value

    assert kept.get(1, ("q", View({"a": 1})), lambda: ask(10)) == 10
    assert kept.get(1, ("q", View({"a": 1})), lambda: ask(11)) == 10
    assert kept.get(1, ("q", View({"a": 2})), lambda: ask(12)) == 12
    assert kept.get(2, ("q", View({"a": 1})), lambda: ask(13)) == 13
    assert kept.get(1, ("q", View({"a": 1})), lambda: ask(14)) == 14, "a late question of the past is asked"
    assert kept.get(2, ("q", View({"a": 1})), lambda: ask(15)) == 13, "and its answer is not kept"
    slow_began, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        slow_began.set()
        assert go_on.wait(10)
        return 20

    thread = threading.Thread(target=lambda: kept.get(2, ("slow",), slow))
    thread.start()
    assert slow_began.wait(10)
    kept.get(3, ("other",), lambda: ask(21))
    go_on.set()
    thread.join()
    assert kept.get(3, ("slow",), lambda: ask(22)) == 22
    assert kept.get(3, ("q", object()), lambda: ask(23)) == 23, "what can't be compared is asked"
    for number in range(MAX_ANSWERS + 1):
        kept.get(3, ("many", number), lambda: 0)
    assert kept.get(3, ("many", 0), lambda: ask(24)) == 24, "bounded"


def test_facets_are_of_now_while_others_ask_too() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    stop, failed = threading.Event(), []

    def ask() -> None:
        turn = 0
        while not stop.wait(0.01):
            turn += 1
            try:
                pool.stats.facets(View(where=f"step_index >= {turn % 3 - 2}"), ["agent", "status", "findings"])
            except BaseException as error:
                failed.append(error)
                raise

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(1, 9):
            pool.steps.append([Step(f"s{n}", f"t{n % 4}", "p", n, NOW, agent=f"a{n % 3}")])
            facets = pool.stats.facets(View(), ["agent", "status"])
            assert sum(count for _, count in facets["agent"]) == sum(count for _, count in facets["status"]) == n
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        pool.close()
    assert not failed
