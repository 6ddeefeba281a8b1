"""Tests of Inspect's table: stored columns, order in the URL, selection by uid."""

from __future__ import annotations

from core.types import View


def test_columns_are_kept_for_the_next_session(filled, open_page):
    page = open_page("inspect")
    box = next(box for box in page.app.multiselect if box.label.startswith("Columns"))
    box.set_value(["trajectory_uid", "reward", "n_steps"]).run()
    assert page.failures == []
    again = open_page("inspect")
    assert next(box for box in again.app.multiselect if box.label.startswith("Columns")).value == [
        "trajectory_uid", "reward", "n_steps",
    ]  # fmt: skip
    again.app.button(key="columns-reset-trajectories").click().run()
    fresh = open_page("inspect")
    assert len(next(box for box in fresh.app.multiselect if box.label.startswith("Columns")).value) > 3


def test_order_of_the_url(filled, open_page):
    page = open_page("inspect", level="steps", order="n_response_tokens asc")
    shown = page.app.dataframe[0].value["n_response_tokens"].tolist()
    wanted = filled.pool.steps.page(View(), order="n_response_tokens asc", limit=50)["n_response_tokens"].to_pylist()
    assert shown == wanted == sorted(wanted)
    assert open_page("inspect", order="nonsense desc").failures == []


def test_a_page_beyond_the_end_is_the_first(filled, open_page):
    page = open_page("inspect", page="99")
    assert page.failures == [] and len(page.app.dataframe[0].value) == filled.pool.trajectories.count(View())


def test_picks_of_the_url_lead_to_the_comparison(filled, open_page):
    page = open_page("inspect", picked=["traj-0-0", "traj-1-0"])
    assert "<b>2</b> selected" in page.html
    page.app.button(key="pick-compare").click().run()
    assert page.failures == []
    assert page.app.query_params["compare"] == ["traj-0-0", "traj-1-0"]


def test_show_only_these_filters_by_uid(filled, open_page):
    page = open_page("inspect", picked=["traj-0-0", "traj-2-1"])
    page.app.button(key="pick-only").click().run()
    assert sorted(page.app.dataframe[0].value["trajectory_uid"]) == ["traj-0-0", "traj-2-1"]
