"""List columns asked for by any, all or none of some names, against Python's sets."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from core.pool import Pool
from core.types import Annotation, Step, View

TAGS: dict[str, set[str]] = {"s0": set(), "s1": {"x"}, "s2": {"y"}, "s3": {"x", "y"}, "s4": {"x", "y", "z"}}
FORMS: dict[str, Any] = {
    "any": lambda have, asked: bool(have & asked),
    "all": lambda have, asked: asked <= have,
    "none": lambda have, asked: not have & asked,
}


@pytest.fixture(scope="module")
def pool() -> Any:
    made = Pool.open(":memory:", clock=lambda: 1e9)
    made.append([Step(uid, "t", "p", place, 1e9) for place, uid in enumerate(TAGS)])
    made.annotate([Annotation("tag", tag, "a", "h", 1e9, step_uid=uid) for uid, tags in TAGS.items() for tag in tags])
    yield made
    made.close()


def test_any_all_and_none_are_what_sets_say(pool: Pool) -> None:
    asked: list[list[str]] = [[], ["x"], ["x", "y"], ["z", "y"], ["x", "y", "z"], ["nobody"]]
    alone = [{form: tags} for form, tags in product(FORMS, asked)]
    together = [{"any": ["x", "z"], "none": tags} for tags in asked] + [{"all": ["y"], "any": ["x"], "none": ["z"]}]
    for wanted in alone + together:
        expected = {uid for uid, have in TAGS.items() if all(FORMS[key](have, set(wanted[key])) for key in wanted)}
        found = pool.steps(View({"tags": wanted}), limit=None)["step_uid"].to_pylist()
        assert set(found) == expected, wanted
