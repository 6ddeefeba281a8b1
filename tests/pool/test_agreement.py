"""Agreement of reviewers against other people's numbers and a count over all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.pool import Pool
from core.pool.agreement import cohen_kappa
from core.types import Annotation, Step, View


def table(a: list[Any], b: list[Any]) -> list[list[int]]:
    labels = sorted({*a, *b})
    return [[sum((x, y) == (p, q) for p, q in zip(a, b, strict=True)) for y in labels] for x in labels]


# The examples of scikit-learn's ``cohen_kappa_score`` and what it answers.
SKLEARN = [
    (["negative", "positive", "negative", "neutral", "positive"],
     ["negative", "positive", "negative", "neutral", "negative"], 0.6875),
    ([2, 0, 2, 2, 0, 1], [0, 0, 2, 2, 0, 2], 0.42857142857142855),
    ([1, 1, 0, 0], [1, 0, 1, 0], 0.0),
    ([1, 0], [0, 1], -1.0),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "expected"), SKLEARN)
def test_kappa_is_scikit_learns(a: list[Any], b: list[Any], expected: float) -> None:
    assert cohen_kappa(table(a, b)) == pytest.approx(expected, abs=1e-15)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_kappa_by_counting_pairs(pairs: list[tuple[int, int]]) -> None:
    """Chance is what two reviewers agree on when any label of one meets any label of the other."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    chance = sum(x == y for x in a for y in b) / len(pairs) ** 2
    observed = sum(x == y for x, y in pairs) / len(pairs)
    kappa = cohen_kappa(table(a, b))
    if chance == 1:
        assert kappa is None
    else:
        assert kappa == pytest.approx((observed - chance) / (1 - chance))


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    opened = Pool.open(tmp_path / "pool.duckdb", memory="300MB", threads=1, clock=lambda: 1.0)
    opened.steps.append([Step(f"s{i}", f"t{i % 2}", "p", i, 1.0, prompt_ids=[1], response_ids=[2]) for i in range(6)])
    yield opened
    opened.close()


def say(pool: Pool, author: str, kind: str, value: Any, **target: str) -> str:
    return pool.labels.annotate([Annotation(kind, value, author, "human", 1.0, **target)])


def test_opinions_are_the_newest_of_each_that_stand(pool: Pool) -> None:
    ours = ["good", "bad", "good", "unsure", "bad", "good"]
    theirs = ["good", "bad", "bad", "unsure", "good", "good"]
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        say(pool, "ann", "quality", "unsure", step_uid=f"s{i}")  # thought better of
        say(pool, "ann", "quality", a, step_uid=f"s{i}")
        say(pool, "bob", "quality", b, step_uid=f"s{i}")
    pool.labels.undo(say(pool, "bob", "quality", "unsure", step_uid="s0"))
    say(pool, "eve", "quality", "good", step_uid="s0")
    say(pool, "eve", "quality", None, step_uid="s0")
    say(pool, "ann", "quality", "bad", trajectory_uid="t0")
    agreement = pool.agreement.between("ann", "bob")
    assert (agreement["n"], agreement["n_agree"]) == (6, 4)
    assert agreement["percent"] == pytest.approx(100 * 4 / 6)
    assert agreement["labels"] == ["bad", "good", "unsure"]
    assert agreement["matrix"] == table(ours, theirs)
    assert agreement["kappa"] == pytest.approx(cohen_kappa(table(ours, theirs)))
    assert pool.agreement.reviewers() == [{"author": "ann", "n": 6}, {"author": "bob", "n": 6}]
    assert [row["step_uid"] for row in pool.agreement.disagreements()] == ["s4", "s2"]
    assert pool.agreement.disagreements(limit=1, offset=1)[0] == {
        "step_uid": "s2", "trajectory_uid": "t0",
        "opinions": [{"author": "ann", "value": "good"}, {"author": "bob", "value": "bad"}],
    }  # fmt: skip
    odd = View({}, "step_index = 1 OR step_index = 4")
    assert pool.agreement.between("ann", "bob", view=odd)["n"] == 2
    assert [row["step_uid"] for row in pool.agreement.disagreements(view=odd)] == ["s4"]
    assert pool.agreement.disagreements(authors=["ann", "eve"]) == []


def test_trajectories_and_other_kinds(pool: Pool) -> None:
    for author, value in (("ann", True), ("bob", False)):
        say(pool, author, "trainable", value, trajectory_uid="t1")
        say(pool, author, "trainable", True, trajectory_uid="t0")
        say(pool, author, "reward", 0.5, trajectory_uid="t0")
    assert pool.agreement.between("ann", "bob", "trainable", "trajectory")["n_agree"] == 1
    (torn,) = pool.agreement.disagreements("trainable", "trajectory")
    assert (torn["step_uid"], torn["trajectory_uid"]) == (None, "t1")
    same = pool.agreement.between("ann", "bob", "reward", "trajectory")
    assert (same["percent"], same["kappa"]) == (100.0, None)
    nothing = pool.agreement.between("ann", "bob")
    assert (nothing["n"], nothing["percent"], nothing["kappa"]) == (0, None, None)


def test_what_can_not_be_compared(pool: Pool) -> None:
    for wrong in ({"kind": "note"}, {"level": "group"}):
        with pytest.raises(InvalidInput):
            pool.agreement.between("a", "b", **wrong)
    with pytest.raises(InvalidInput):
        pool.agreement.between("a", "a")
