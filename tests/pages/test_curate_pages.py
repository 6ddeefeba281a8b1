"""Tests of Curate's distributions and funnel: shown numbers equal those of the pool and the plan."""

from __future__ import annotations

import re

import pytest

from core.batch.leases import Fetch
from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.types import Annotation, View
from tests.pages.test_lab_pages import components, figure


def test_the_funnel_starts_at_what_was_captured_and_ends_at_the_plan(filled, open_page):
    filled.pool.labels.annotate([Annotation("quality", "bad", "me", "test", 1.0, trajectory_uid="traj-0-1")])
    page = open_page("curate", tab="funnel")
    assert page.failures == []
    rows = re.findall(r'<span style="font-weight:\d+">([A-Z][^<]*)</span>', page.html)
    made = plan(filled.pool, View(), Recipe())
    assert rows == [
        "Captured, all channels",
        "Candidates",
        *(item.label for item in made.excluded),
        "In the plan",
    ]
    left = [int(n.replace(",", "")) for n in re.findall(r'<div class="n">([\d,]+)</div>', page.html)]
    assert left[0] == filled.pool.steps.count(View()) and left[-1] == len(made.steps)
    assert sorted(left, reverse=True) == left


def test_distributions_apart_by_a_facet(filled, open_page):
    page = open_page("curate", tab="distributions", by="agent", agent="opencode")
    assert page.failures == [] and "opencode" in page.html
    assert open_page("curate", tab="distributions", by="nonsense").failures == []


def test_findings_are_a_facet_with_their_definitions(filled, open_page):
    page = open_page("inspect")
    facets = {facet["column"]: facet for facet in components(page, "facets")[0]["facets"]}
    assert dict(facets["findings"]["values"])["truncated"] == 1
    assert "cut off" in facets["findings"]["hints"]["truncated"]
    narrowed = open_page("inspect", findings="truncated")
    assert narrowed.app.dataframe[0].value["trajectory_uid"].tolist() == ["traj-long"]


def test_a_flag_offers_only_what_can_be_chosen(filled, open_page):
    filled.pool.labels.annotate([Annotation("correct", True, "me", "test", 1.0, trajectory_uid="traj-0-1")])
    filled.pool.labels.annotate([Annotation("correct", False, "me", "test", 1.0, trajectory_uid="traj-0-2")])
    page = open_page("inspect")
    facets = {facet["column"]: facet for facet in components(page, "facets")[0]["facets"]}
    assert {value for value, _ in facets["trajectory_correct"]["values"]} == {True, False}
    shown = open_page("inspect", trajectory_correct="true").app.dataframe[0].value
    assert shown["trajectory_uid"].tolist() == ["traj-0-1"]


def test_curate_plans_by_the_recipe_that_trainers_fetch_by(filled, open_page):
    """Ready on Curate equals the channel's next fetch, not a fetch with default settings."""
    pool = filled.pool
    wanted = Recipe(n_rollouts=2, batch_size=1)
    version = pool.recipes.save("main", wanted.to_json(), author="me")
    pool.recipes.activate("train", "main", version, author="me")
    fetched = filled.leases.preview(Fetch("trainer-1"))
    assert (fetched.n_groups, len(fetched.trajectories)) == (1, 2)
    page = open_page("curate")
    assert figure(page, "Plan: groups") == "1"
    assert figure(page, "Plan: trajectories") == "2"
    assert figure(page, "Plan: steps") == str(len(fetched.steps))
    assert "recipe main v1" in page.html
    funnel = open_page("curate", tab="funnel")
    left = [int(n.replace(",", "")) for n in re.findall(r'<div class="n">([\d,]+)</div>', funnel.html)]
    assert left[-1] == len(fetched.steps)


@pytest.mark.parametrize(
    ("key", "params", "button"),
    [
        ("inspect", {"trajectory": "gone"}, "absent-list"),
        ("inspect", {"step": "gone"}, "absent-list"),
        ("inspect", {"group": "gone"}, "absent-list"),
        ("inspect", {"compare": ["gone", "away"]}, "absent-list"),
        ("consume", {"batch": "gone"}, "back"),
        ("optimise", {"recipe": '{"n_rollouts": -1}'}, "default-recipe"),
        ("batch", {"recipe": "{"}, "default-recipe"),
    ],
)
def test_an_address_that_leads_nowhere_says_so_and_leads_on(filled, open_page, key, params, button):
    page = open_page(key, **params)
    assert "cs-callout bad" in page.html and "This part of the page failed" not in page.html
    page.app.button(key=button).click().run()
    assert page.failures == []


def test_changes_to_the_next_fetch_that_do_not_fit_are_explained(filled, open_page):
    page = open_page("consume", recipe="{")
    assert "not JSON" in page.html and "This part of the page failed" not in page.html
