"""List columns asked for by any, all or none of some names, against Python's sets."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.pool import Pool
from core.types import Annotation, Step, View
from tests.effort import settings

TAGS: dict[str, set[str]] = {"s0": set(), "s1": {"x"}, "s2": {"y"}, "s3": {"x", "y"}, "s4": {"x", "y", "z"}}
FORMS: dict[str, Any] = {
    "any": lambda have, wanted: bool(have & wanted),
    "all": lambda have, wanted: wanted <= have,
    "none": lambda have, wanted: not have & wanted,
}


@pytest.fixture(scope="module")
def pool() -> Any:
    made = Pool.open(":memory:", clock=lambda: 1e9)
    made.steps.append([Step(uid, "t", "p", place, 1e9) for place, uid in enumerate(TAGS)])
    made.labels.annotate(
        [Annotation("tag", tag, "a", "h", 1e9, step_uid=uid) for uid, tags in TAGS.items() for tag in tags]
    )
    yield made
    made.close()


def test_any_all_and_none_are_what_sets_say(pool: Pool) -> None:
    wanted_lists: list[list[str]] = [[], ["x"], ["x", "y"], ["z", "y"], ["x", "y", "z"], ["nobody"]]
    alone = [{form: tags} for form, tags in product(FORMS, wanted_lists)]
    together = [{"any": ["x", "z"], "none": tags} for tags in wanted_lists] + [
        {"all": ["y"], "any": ["x"], "none": ["z"]}
    ]
    for wanted in alone + together:
        expected = {uid for uid, have in TAGS.items() if all(FORMS[key](have, set(wanted[key])) for key in wanted)}
        matching = pool.steps.page(View({"tags": wanted}), limit=None)["step_uid"].to_pylist()
        assert set(matching) == expected, wanted


ODD = ("x", "x,", ",", '",x', '["x', '"x"', 'x"', '\\"x', ',"x"', "x\x00y", "\x7f", "\u2028", "𝕏", "null", "a\nb", "[]")
odd = st.one_of(st.sampled_from(ODD), st.text(st.sampled_from('x",[]\\ -\x1f\n/é'), min_size=1, max_size=4)).map(
    lambda name: name.strip().lstrip("-").strip() or "x"
)


@given(st.lists(st.sets(odd, max_size=4), min_size=8, max_size=12), st.lists(odd, min_size=1, max_size=8))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tags_of_any_letters_are_told_and_found_exactly(standing: list[set[str]], asked: list[str]) -> None:
    pool = Pool.open(":memory:", clock=lambda: 1e9, threads=1)
    pool.steps.append([Step(f"s{i}", f"t{i}", "p", 0, 1e9) for i in range(len(standing))])
    targets = [({"step_uid": f"s{i}"}, {"trajectory_uid": f"t{i}"}) for i in range(len(standing))]
    given_tags = [
        Annotation("tag", tag, "a", "h", 1e9, **target)
        for both, tags in zip(targets, standing, strict=True)
        for target in both
        for tag in tags
    ]
    if given_tags:
        pool.labels.annotate(given_tags)
    steps = {row["step_uid"]: row["tags"] for row in pool.steps.page(limit=None).to_pylist()}
    trajectories = {row["trajectory_uid"]: row["tags"] for row in pool.trajectories.page(limit=None).to_pylist()}
    for i, tags in enumerate(standing):
        assert steps[f"s{i}"] == trajectories[f"t{i}"] == sorted(tags, key=lambda tag: tag.encode())
    everything = {tag for tags in standing for tag in tags}
    for tag in [*asked, *everything]:
        expected = {f"s{i}" for i, tags in enumerate(standing) if tag in tags}
        assert set(pool.steps.page(View({"tags": tag}), limit=None)["step_uid"].to_pylist()) == expected, tag
    for columns in (["tags"], ["tags", "channel"]):
        counted = dict(pool.stats.facets(View(), columns)["tags"])
        assert counted == {tag: sum(tag in tags for tags in standing) for tag in everything}
    pool.close()
