"""Columns in memory grow by what writes change: after any writes they say what the tables say."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pool import Pool
from core.pool.cache.arrayqueries import bins_of, page_of
from core.pool.cache.columncache import SORTED
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.facets import count_by_sql
from core.pool.query.histogram import by_sql
from core.pool.query.views import compile_view, source_sql
from core.pool.store.changes import MAX_KEPT_WRITES, NO_CHANGES, Changes, ChangeSet
from core.pool.store.database import rows
from core.types import Annotation, PolicyEvent, Step, View

NOW = 1e9
FACETS = (
    "channel", "agent", "model", "policy_version", "call_kind", "transition", "finish_reason", "trainable", "quality",
    "correct", "is_last", "complete", "trajectory_quality", "findings", "tags", "tool_names",
)  # fmt: skip


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 4), st.floats(-2, 2)), max_size=30),
    st.booleans(),
    st.integers(0, 35),
    st.integers(0, 12),
)
def test_a_page_is_what_sorting_all_would_show(
    values: list[float | None], descending: bool, offset: int, limit: int
) -> None:
    sign = -1 if descending else 1
    rows = [(place * 3, value) for place, value in enumerate(values)]
    rows.sort(key=lambda row: (row[1] is None, sign * (row[1] or 0), sign * row[0]))
    keys = np.array([math.nan if value is None else value for value in values], np.float64)
    page = page_of(np.arange(len(values)) * 3, keys, descending=descending, offset=offset, limit=limit)
    assert page.tolist() == [step_id for step_id, _ in rows[offset : offset + limit]]


def test_bins_leave_out_what_is_unknown_or_infinite() -> None:
    low, high, n = bins_of(np.array([0.0, 1.0, 9.99, 10.0, math.nan, math.inf]), 5) or pytest.fail("no bins")
    assert low.tolist() == [0, 2, 4, 6, 8] and high.tolist() == [2, 4, 6, 8, 10] and n.tolist() == [2, 0, 0, 0, 2]
    assert bins_of(np.array([math.nan]), 5) is None


def test_writes_are_remembered_by_what_they_touched() -> None:
    changes = Changes()
    one, two = ChangeSet(frozenset({1})), ChangeSet(actions=frozenset({7}))
    changes.add(1, one)
    changes.add(2, NO_CHANGES)
    changes.add(3, two)
    assert changes.since(0) == one | two and changes.since(1) == two and changes.since(3) == NO_CHANGES
    changes.add(4, None)
    assert changes.since(3) is None and changes.since(4) == NO_CHANGES
    assert changes.any_since(3) and not changes.any_since(4) and not Changes().any_since(0)
    for number in range(5, 5 + MAX_KEPT_WRITES):
        changes.add(number, one)
    assert changes.since(3) is None, "what is forgotten may be all"
    assert changes.since(4) == one


class Story:
    """A pool and a seeded teller of things that happen to it."""

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self.pool, self.rng = pool, rng
        self.n_steps, self.n_trajectories, self.version = 0, 0, 0
        self.actions: list[str] = []

    def arrive(self, *, at_most: int = 8) -> None:
        rng, steps = self.rng, []
        for _ in range(rng.randint(1, at_most)):
            self.n_trajectories = max(self.n_trajectories, rng.randrange(self.n_trajectories + 3))
            trajectory = rng.randrange(self.n_trajectories + 1)
            steps.append(
                Step(
                    f"s{self.n_steps}", f"t{trajectory}", f"p{trajectory % 7}", self.n_steps, NOW + rng.randrange(99),
                    channel="val" if trajectory % 7 == 6 else "train",
                    agent=rng.choice([None, "a", "b", f"n{self.n_steps}"]),
                    policy_version=rng.choice([None, 1, 2]), finish_reason=rng.choice([None, "stop", "length"]),
                    reward=rng.choice([None, 0.0, 1.0, rng.random()]), latency_s=rng.choice([None, rng.random()]),
                    response_message={"content": "x", "tool_calls": [{"function": {"name": rng.choice("fgh")}}]},
                    prompt_ids=[1] * rng.randrange(5), response_ids=[2],
                )
            )  # fmt: skip
            self.n_steps += 1
        self.n_trajectories += 1
        self.pool.steps.append(steps)

    def complete(self) -> None:
        done = {"trajectory_uid": self._trajectory(), "reward": self.rng.choice([0.0, 1.0]), "outcome": "failed"}
        self.pool.steps.append([], completions=[done])

    def move(self) -> None:
        """A trajectory turns out to be of another prompt group, or channel."""
        fields = {"trajectory_uid": self._trajectory(), "prompt_uid": f"p{self.rng.randrange(9)}", "channel": "train"}
        self.pool.steps.append([], registrations=[fields])

    def word(self) -> None:
        """Somebody's feedback on a trajectory."""
        entry = {
            "feedback_uid": f"f{self.rng.randrange(5)}", "trajectory_uid": self._trajectory(), "step_uid": None,
            "response_id": None, "choice_index": 0, "kind": "score", "value": 1.0, "reward": self.rng.random(),
            "author": "kim", "source": "human", "note": None, "metadata": {}, "given_at": None,
            "received_at": NOW + self.n_steps,
        }  # fmt: skip
        self.pool.steps.append([], feedback=[entry])

    def label(self) -> None:
        target = {"step_uid": f"s{self.rng.randrange(self.n_steps)}"}
        if self.rng.random() < 0.5:
            target = {"trajectory_uid": self._trajectory()}
        self.actions.append(self.pool.labels.annotate([Annotation(*self._opinion(), "a", "h", NOW, **target)]))

    def label_all(self) -> None:
        kind, value = self._opinion()
        view = View({"agent": self.rng.choice(["a", "b"])})
        level = self.rng.choice(["step", "trajectory"])
        self.actions.append(self.pool.labels.annotate_view(view, level, kind, value, author="a", source="h")[0])

    def undo(self) -> None:
        if self.actions:
            self.pool.labels.undo(self.rng.choice(self.actions))

    def redo(self) -> None:
        if self.actions:
            self.pool.labels.redo(self.rng.choice(self.actions))

    def sync(self) -> None:
        self.version += 1
        self.pool.steps.append([], policy_events=[PolicyEvent(self.version, "registered", NOW + self.version)])

    def adopt(self) -> None:
        self.pool.rewards.save("first", {"rule": "first"})
        self.pool.rewards.adopt("train", self.rng.choice([None, "first"]))

    def _trajectory(self) -> str:
        with self.pool._db.read() as cursor:
            known = cursor.execute("SELECT trajectory_uid FROM trajectory_state ORDER BY trajectory_id").fetchall()
        return str(self.rng.choice(known)[0])

    def _opinion(self) -> tuple[str, Any]:
        rewards: list[tuple[str, Any]] = [("reward", 0.25), ("reward", 1.0)]
        return self.rng.choice([*rewards, ("quality", "good"), ("tag", "x"), ("trainable", False), ("correct", True)])


def by_definition(pool: Pool, view: View) -> list[dict[str, Any]]:
    """Every step of a view by what its columns are declared to be, in one join."""
    selected = ", ".join(f"{column.sql} AS {column.name}" for column in STEP_COLUMNS.values())
    condition = compile_view(view)
    with pool._db.read() as cursor:
        return rows(
            cursor,
            f"SELECT {selected} {source_sql(condition, trajectory=True)} ORDER BY s.step_index, s.step_id",
            condition.parameters,
        )


def check(pool: Pool, rng: random.Random) -> None:
    view = rng.choice([View(), View({"trainable": True}), View(where="step_index % 2 = 0")])
    found_rows = pool.steps.page(view, order="step_index", limit=None).to_pylist()
    assert found_rows == by_definition(pool, view)
    facets = pool.stats.facets(view, FACETS)
    with pool._db.read() as cursor:
        assert facets == count_by_sql(cursor, view, FACETS, 200)
        column = rng.choice(sorted(name for name in SORTED if STEP_COLUMNS[name].kind in ("number", "time")))
        assert pool.stats.histogram(view, column, 7).to_pylist() == by_sql(cursor, view, column, 7).to_pylist()
    name, descending = rng.choice(sorted(SORTED)), rng.random() < 0.5
    places = {
        row["step_uid"]: int(row["step_uid"][1:]) for row in found_rows
    }  # they arrived in the order of their names
    known = [row for row in found_rows if row[name] is not None]
    expected = sorted(known, key=lambda row: (row[name], places[row["step_uid"]]), reverse=descending)
    expected += sorted(
        (row for row in found_rows if row[name] is None), key=lambda row: places[row["step_uid"]], reverse=descending
    )
    offset = rng.randrange(len(found_rows) + 1)
    page = pool.steps.page(view, order=f"{name} {'desc' if descending else 'asc'}", limit=9, offset=offset)
    assert page.to_pylist() == expected[offset : offset + 9], name


@pytest.mark.parametrize("seed", [1, 2])
def test_what_grew_is_what_is_made_anew(seed: int) -> None:
    rng = random.Random(seed)
    pool = Pool.open(":memory:", clock=lambda: NOW)
    story = Story(pool, rng)
    try:
        for _ in range(6):
            story.arrive(at_most=60)  # enough that what follows is a small part
        check(pool, rng)
        happenings = [
            story.arrive, story.arrive, story.complete, story.move, story.word, story.label, story.label,
            story.label_all, story.undo, story.redo, story.sync, story.adopt,
        ]  # fmt: skip
        for _ in range(12):
            for _ in range(rng.randint(1, 2)):
                rng.choice(happenings)()
            check(pool, rng)
    finally:
        pool.close()


def test_the_steps_of_a_view_are_read_once_until_something_is_written() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    pool.steps.append([Step(f"s{n}", "t", "p", n, NOW, agent="ab"[n % 2]) for n in range(20)])

    def steps_of(view: View) -> np.ndarray:
        with pool.cache.columns.reading(view) as moment:
            return moment.step_ids()

    first, other = steps_of(View({"agent": "a"})), steps_of(View({"agent": "b"}))
    assert steps_of(View({"agent": "a"})) is first and steps_of(View({"agent": "b"})) is other
    assert steps_of(View({"agent": "a"}, "step_index > 3")).tolist() == first[2:].tolist()
    pool.steps.append([Step("more", "t", "p", 20, NOW, agent="a")])
    assert steps_of(View({"agent": "a"})).tolist() == [*first.tolist(), 21]
    with pool.cache.columns.reading(View({"agent": "b"})) as moment:
        pool.steps.append([Step("late", "t", "p", 21, NOW, agent="b")])
        assert moment.step_ids().tolist() == other.tolist()
    assert steps_of(View({"agent": "b"})).tolist() == [*other.tolist(), 22]
    pool.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_who_leaves_a_group_changes_those_who_stay(ahead: bool) -> None:
    """A column that was read once, then the first thing that happens is a move."""
    pool = Pool.open(":memory:", clock=lambda: NOW)
    numbers = range(200)
    done = [{"trajectory_uid": f"t{n}", "reward": float(n % 4 == 0)} for n in numbers]
    pool.steps.append([Step(f"s{n}", f"t{n}", f"p{n // 4}", 0, NOW) for n in numbers], completions=done)
    try:
        if ahead:
            pool.cache.columns.read_ahead(lambda: False)
        for group in ("p40", "p41"):
            if not ahead:
                before = pool.steps.page(order="difficulty", limit=200)["difficulty"].to_pylist()
                assert before == sorted(before)
            pool.steps.append([], registrations=[{"trajectory_uid": "t0", "prompt_uid": group}])
        after = pool.steps.page(order="difficulty", limit=200).to_pylist()
        assert [row["difficulty"] for row in after] == sorted(row["difficulty"] for row in after)
        assert [row["step_uid"] for row in after if row["difficulty"] == 1.0] == ["s1", "s2", "s3"]
    finally:
        pool.close()


def test_what_was_deleted_is_on_no_page() -> None:
    rng = random.Random(5)
    pool = Pool.open(":memory:", clock=lambda: NOW)
    story = Story(pool, rng)
    try:
        for _ in range(4):
            story.arrive(at_most=60)
        for _ in range(3):
            check(pool, rng)
        with pool._db.write() as cursor:
            for table in ("step_state", "steps", "trajectory_state"):
                cursor.execute(f"DELETE FROM {table} WHERE trajectory_id % 3 = 0")
        for _ in range(3):
            check(pool, rng)
        story.arrive()
        check(pool, rng)
    finally:
        pool.close()


def test_readers_see_one_moment_while_others_write() -> None:
    """Facets, a page and a count of a snapshot agree with each other at any time."""
    pool = Pool.open(":memory:", clock=lambda: NOW)
    stop, failed = threading.Event(), []

    def ask() -> None:
        rng = random.Random(1)
        while not stop.wait(0.005):
            try:
                view = View(where=f"step_index >= {-rng.randrange(3)}")
                with pool.cache.columns.reading(view, facets=True, columns=["latency_s"]) as moment:
                    step_ids = moment.step_ids()
                    assert moment.facets is not None
                    counted = moment.facets.counts(step_ids, ["agent", "quality"], 50)
                    with_latency = moment.keys("latency_s", step_ids)
                    by_hand = count_by_sql(moment.cursor, moment.view, ["agent", "quality"], 50)
                    assert counted == by_hand
                    assert with_latency is not None and sorted(with_latency.tolist()) == step_ids.tolist()
            except BaseException as error:
                failed.append(error)
                raise

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(1, 13):  # its latency is a step's number: they count up with arrival
            pool.steps.append([Step(f"s{n}", f"t{n % 4}", "p", n, NOW, agent=f"a{n % 3}", latency_s=float(n))])
            action = pool.labels.annotate([Annotation("quality", "good", "a", "h", NOW, step_uid=f"s{n}")])
            if n % 3 == 0:
                pool.labels.undo(action)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        pool.close()
    assert not failed
