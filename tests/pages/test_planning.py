"""The recipe in the URL, and the plan before a label against the plan after it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.batch.plan import plan
from core.batch.recipe import Recipe, parse_recipe
from core.pool import Pool
from core.types import Annotation, AnnotationKind, View
from studio.widgets.browse import span
from studio.widgets.filters import describe, selected_values, signature, toggled, with_filter
from studio.widgets.planning import Supposed, can_suppose, plan_counts, recipe_to_query
from tests.pages.samples import START, agent_steps, title_step

recipes = st.fixed_dictionaries(
    {},
    optional={
        "algorithm": st.sampled_from(["grpo", "rloo", "sft"]),
        "n_rollouts": st.integers(2, 8),
        "batch_size": st.integers(1, 8),
        "max_staleness": st.integers(0, 4),
        "token_budget": st.integers(1, 1 << 20),
        "n_ranks": st.integers(1, 64),
        "channel": st.sampled_from(["train", "val"]),
        "require_complete": st.booleans(),
        "token_sources": st.lists(st.sampled_from(["engine", "retokenized"]), min_size=1, unique=True),
    },
)


@settings(deadline=None)
@given(recipes)
def test_a_recipe_survives_the_url(fields):
    recipe = parse_recipe(fields)
    text = recipe_to_query(recipe)
    assert (Recipe() if text is None else parse_recipe(json.loads(text))) == recipe


def test_the_default_recipe_needs_no_url():
    assert recipe_to_query(Recipe()) is None


@pytest.fixture
def pool(tmp_path):
    opened = Pool.open(tmp_path / "pool.duckdb", clock=lambda: START)
    steps, completions = agent_steps()
    opened.append([*steps, title_step()], completions=completions)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("target", "kind", "value"),
    [
        ("trajectory", AnnotationKind.QUALITY, "bad"),
        ("trajectory", AnnotationKind.REWARD, 0.25),
        ("step", AnnotationKind.QUALITY, "bad"),
        ("step", AnnotationKind.TRAINABLE, False),
        ("step", AnnotationKind.TRAINABLE, True),
    ],
)
@pytest.mark.parametrize("uids", [("traj-0-0", "traj-2-3"), ("traj-1-0", "traj-1-1", "traj-1-2")])
def test_what_a_preview_supposes_comes_true(pool, target, kind, value, uids):
    chosen = list(uids) if target == "trajectory" else [f"{uid}-s{n}" for uid in uids for n in (0, 1)]
    if value is True:
        chosen.append("traj-0-0-title")
    assert can_suppose(target, kind, value)
    supposed = plan(Supposed(pool, target, chosen, kind, value), View(), Recipe())
    pool.annotate([Annotation(kind, value, "t", "test", START, **{f"{target}_uid": uid}) for uid in chosen])
    true = plan(pool, View(), Recipe())
    assert supposed.hash == true.hash
    assert plan_counts(supposed.counts) == plan_counts(true.counts)
    assert plan_counts(true.counts)["tokens"] == true.totals["n_tokens"]


def test_withdrawn_quality_is_supposed_and_other_withdrawals_are_not(pool):
    pool.annotate([Annotation(AnnotationKind.QUALITY, "bad", "t", "test", START, trajectory_uid="traj-0-1")])
    supposed = plan(Supposed(pool, "trajectory", ["traj-0-1"], AnnotationKind.QUALITY, None), View(), Recipe())
    assert len(supposed.trajectories) == 12
    assert not can_suppose("trajectory", AnnotationKind.REWARD, None)
    assert not can_suppose("step", AnnotationKind.TRAINABLE, None)
    assert not can_suppose("trajectory", AnnotationKind.TRAINABLE, False)


def test_facet_clicks():
    view = toggled(View(), "agent", None)
    assert view.filters == {"agent": [None]}
    assert toggled(toggled(view, "agent", "a"), "agent", None).filters == {"agent": ["a"]}
    assert toggled(View(), "complete", True).filters == {"complete": True}
    assert toggled(View({"complete": True}), "complete", True).filters == {}
    assert toggled(View({"complete": True}), "complete", False).filters == {"complete": False}
    assert toggled(View(), "policy_version", 3).filters == {"policy_version": 3}
    assert selected_values(View({"policy_version": [1, 3]}), "policy_version") == []


def test_a_view_in_words_and_in_keys():
    assert describe("latency_s", [None, 2.5]) == "latency_s ≤ 2.5"
    assert signature(View({"a": 1, "b": 2})) == signature(View({"b": 2, "a": 1}))
    assert signature(View({"a": 1})) != signature(View({"a": 1}, "x > 1"))
    assert with_filter(View({"agent": "a"}, "x > 1"), "agent", None) == View({}, "x > 1")
    assert span(None, 3) is None


def test_a_supposed_pool_plans_what_reads_fields_values_and_rewards(filled):
    """Every recipe that plans on the pool plans on the pool as it would be after a label."""
    pool = filled.pool
    uids = pool.trajectories(limit=2)["trajectory_uid"].to_pylist()
    supposed = Supposed(pool, "trajectory", uids, "quality", "bad")
    for recipe in ({"algorithm": "step_gae"}, {"value_model": "c", "algorithm": "step_gae"}, {"rewards": ["complete"]}):
        before, after = (plan(one, View(), parse_recipe(recipe)) for one in (pool, supposed))
        bad = [reason for reason in after.excluded if reason.reason == "labelled_bad"]
        assert bad and not [reason for reason in before.excluded if reason.reason == "labelled_bad"]
