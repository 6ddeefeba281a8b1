"""A saved view by its name is what it says, in every reader and in labels; what names itself is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.types import Annotation, Step, View

NOW = 1e9
MEANT = View({"agent": "a", "text": "odd"}, "step_index > 0")
NAMED = View({"saved_view": "mine"})


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool.open(":memory:", clock=lambda: NOW)
    made.steps.append(
        [
            Step(
                f"s{i}", f"t{i // 4}", "p", i % 4, NOW + i, agent="ab"[i % 3 % 2], latency_s=i / 7,
                response_message={"role": "assistant", "content": "odd" if i % 2 else "even"},
            )
            for i in range(24)
        ]
    )  # fmt: skip
    made.labels.annotate(
        [Annotation("quality", "good" if i % 2 else "bad", "kim", "human", NOW, step_uid=f"s{i}") for i in range(24)]
    )
    made.labels.annotate([Annotation("quality", "good", "lee", "human", NOW, step_uid=f"s{i}") for i in range(24)])
    made.views.save("mine", MEANT)
    yield made
    made.close()


QUESTIONS: dict[str, Callable[[Pool, View], Any]] = {
    "count": lambda pool, view: pool.steps.count(view),
    "count_trajectories": lambda pool, view: pool.trajectories.count(view),
    "count_groups": lambda pool, view: pool.groups.count(view),
    "steps": lambda pool, view: pool.steps.page(view, order="latency_s desc", limit=4, offset=1).to_pylist(),
    "steps_after": lambda pool, view: pool.steps.page_after(view)[0].to_pylist(),
    "trajectories": lambda pool, view: pool.trajectories.page(view).to_pylist(),
    "groups": lambda pool, view: pool.groups.page(view).to_pylist(),
    "facets": lambda pool, view: pool.stats.facets(view, ["agent", "quality", "n_steps"]),
    "histogram": lambda pool, view: pool.stats.histogram(view, "latency_s", 5).to_pylist(),
    "spread": lambda pool, view: pool.stats.distribution(view, "latency_s", by="quality").to_pylist(),
    "reach": lambda pool, view: pool.stats.reach(view, "trajectory"),
    "review": lambda pool, view: pool.review.queue(view, "step", "newest", author="kim").to_pylist(),
    "agreement": lambda pool, view: pool.agreement.between("kim", "lee", view=view),
    "disagreements": lambda pool, view: pool.agreement.disagreements(view=view),
    "plan": lambda pool, view: pool.training.plan_rows(view, channel=None).to_pylist(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_saved_view_answers_as_what_it_says(pool: Pool, question: str) -> None:
    ask = QUESTIONS[question]
    assert ask(pool, NAMED) == ask(pool, MEANT)
    more = {"step_index": [2, None]}
    assert ask(pool, View({**more, "saved_view": ["mine"]})) == ask(pool, View({**MEANT.filters, **more}, MEANT.where))
    with pytest.raises(NotFound, match="nobody"):
        ask(pool, View({"saved_view": "nobody"}))


def test_bulk_labels_take_a_saved_view(pool: Pool) -> None:
    expected = set(pool.steps.page(MEANT, limit=None)["step_uid"].to_pylist())
    _, n = pool.labels.annotate_view(NAMED, "step", "tag", "x", author="kim", source="human")
    assert n == len(expected) > 0
    assert set(pool.steps.page(View({"tags": "x"}), limit=None)["step_uid"].to_pylist()) == expected


def test_saved_views_name_each_other_but_not_themselves(pool: Pool) -> None:
    pool.views.save("late", View({"saved_view": "mine", "step_index": [3, None]}))
    late = View({**MEANT.filters, "step_index": [3, None]}, MEANT.where)
    assert pool.steps.page(View({"saved_view": "late"})).to_pylist() == pool.steps.page(late).to_pylist()
    with pytest.raises(InvalidInput, match="names itself"):
        pool.views.save("mine", View({"saved_view": "late"}))
    with pytest.raises(NotFound):
        pool.views.save("other", View({"saved_view": "nobody"}))
    assert pool.views.get("mine") == MEANT
    assert [row["name"] for row in pool.views.all()] == ["late", "mine"]
    pool.views.save("mine", View({"agent": "b"}))
    assert pool.steps.count(NAMED) == pool.steps.count(View({"agent": "b"}))


def test_two_texts_and_a_text_in_a_saved_view(pool: Pool) -> None:
    view = View({"saved_view": "mine", "text": "even"})
    assert pool.steps.count(view) == 0
    assert pool.steps.count(View({"saved_view": "mine", "text": "o"})) == pool.steps.count(MEANT)
