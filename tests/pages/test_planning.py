"""Tests of the recipe in the URL, and of filters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.recipe import Recipe, parse_recipe
from core.pool import Pool
from core.types import View
from studio.kit.data_tables import version_span
from studio.kit.filters import describe, selected_values, toggled, view_hash, with_filter
from studio.widgets.plans.recipe_query import recipe_to_query
from tests.effort import settings
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
    opened.steps.append([*steps, title_step()], completions=completions)
    yield opened
    opened.close()


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
    assert view_hash(View({"a": 1, "b": 2})) == view_hash(View({"b": 2, "a": 1}))
    assert view_hash(View({"a": 1})) != view_hash(View({"a": 1}, "x > 1"))
    assert with_filter(View({"agent": "a"}, "x > 1"), "agent", None) == View({}, "x > 1")
    assert version_span(None, 3) is None
