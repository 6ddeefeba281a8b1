"""Tests of plan charts: each trajectory is drawn or counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.types import View
from studio.charts.plan import group_density, group_strip
from studio.kit.format import short_uid
from studio.widgets.batch import credit
from tests.pages.samples import agent_steps


@pytest.mark.parametrize("n_groups", [1, 119, 121, 2375])
def test_a_density_counts_each_scored_trajectory_once(n_groups):
    rng = np.random.default_rng(n_groups)
    group = np.repeat(np.arange(n_groups), 8)
    rewards = rng.choice([0.0, 0.25, 1.0], len(group))
    rewards[rng.random(len(group)) < 0.1] = np.nan
    advantages = np.where(np.isnan(rewards), np.nan, rng.normal(size=len(group)))
    drawn = group_density(group, rewards, advantages).data[0]
    cells = np.nan_to_num(np.asarray(drawn.z, dtype=float))
    assert cells.sum() == (~np.isnan(rewards)).sum()
    rows = np.asarray(drawn.y)
    for value in (0.0, 0.25, 1.0):
        row = int(np.abs(rows - value).argmin())
        assert cells[row].sum() == (rewards == value).sum()
    assert drawn.zmin == 0 and drawn.zmax == cells.max()
    each = -(-n_groups // 120)
    column = cells.shape[1] // 2
    inside = (group // each == column) & (rewards == 1.0)
    top = int(np.abs(rows - 1.0).argmin())
    assert cells[top, column] == inside.sum()
    if inside.any():
        assert f"{inside.sum():,} trajectories" in drawn.text[top][column]
        assert f"mean advantage {advantages[inside].mean():+.3f}" in drawn.text[top][column]


def test_a_density_of_one_reward_or_of_none():
    one = group_density(np.zeros(5, int), np.ones(5), np.full(5, np.nan)).data[0]
    assert np.nansum(np.asarray(one.z, dtype=float)) == 5
    nothing = group_density(np.zeros(5, int), np.full(5, np.nan), np.full(5, np.nan)).data[0]
    assert np.nansum(np.asarray(nothing.z, dtype=float)) == 0


def test_siblings_with_one_reward_hide_none_of_them():
    drawn = group_strip(list("aaaabb"), [0, 0, 1, None, 1, 1], [-1, -1, 2, None, 0, 0], list("uvwxyz"), first=7).data[0]
    places = list(zip(drawn.x, drawn.y, strict=True))
    assert len(set(places)) == len(places) == 5
    assert [round(x) for x in drawn.x] == [7, 7, 7, 8, 8]


def test_a_plan_of_many_trajectories_is_a_density_and_dots_by_the_page(service, open_page, monkeypatch):
    steps, completions = agent_steps(50, 2)
    service.pool.steps.append(steps, completions=completions)
    monkeypatch.setattr(credit, "MAX_DOTS", 60)
    page = open_page("batch", tab="credit", page="2")
    assert page.failures == []
    density, dots = (json.loads(chart.proto.spec) for chart in page.app.get("plotly_chart")[-2:])
    assert density["data"][0]["type"] == "heatmap"
    made = plan(service.pool, View(), Recipe())
    drawn = dots["data"][0]["customdata"]
    last_ten = made.trajectories.filter([number >= 40 for number in made.trajectories["group"].to_pylist()])
    assert [row[0] for row in drawn] == last_ten["trajectory_uid"].to_pylist()
    assert "Groups 40 to 49" in page.html


def test_the_chosen_come_by_the_page(service, open_page, monkeypatch):
    steps, completions = agent_steps(205, 2)
    service.pool.steps.append(steps, completions=completions)
    made = plan(service.pool, View(), Recipe())
    names = [group.prompt_uid for group in made.groups]
    assert len(names) == 205
    page = open_page("batch", page="2")
    assert page.failures == []
    groups, trajectories = (frame.value for frame in page.app.dataframe)
    assert groups["prompt_uid"].tolist() == [short_uid(name, 15) for name in names[200:]]
    assert groups["tokens"].sum() == sum(one.n_tokens for group in made.groups[200:] for one in group.trajectories)
    rows = made.trajectories.to_pylist()
    on_page = [short_uid(row["trajectory_uid"], 14) for row in rows if row["group"] >= 200]
    assert trajectories["trajectory_uid"].tolist() == on_page
    assert any("201–205 of 205 groups" in one.value for one in page.app.caption)
    json_page = open_page("batch", tab="json")
    shown = json.loads(json_page.app.json[0].value)
    assert shown == {**made.to_json(), "groups": made.to_json()["groups"][:20]}
    assert any("first 20 of 205" in one.value for one in json_page.app.caption)
