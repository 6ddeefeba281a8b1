"""Tests of the review queue: labels go to the current item, the next follows, undo goes back."""

from __future__ import annotations

import pytest

from core.types import Annotation, View
from studio import state


def shown(page) -> str:
    return (
        page.app.query_params["item"][0]
        if isinstance(page.app.query_params["item"], list)
        else page.app.query_params["item"]
    )


def press(page, name: str):
    page.app.button(key=f"review-{name}").click().run()
    assert page.failures == []
    return page


def quality(service, uid: str):
    return service.pool.trajectories.get(uid, tokens=False)["quality"]


def test_label_goes_on_and_undo_comes_back(filled, open_page):
    page = open_page("curate", tab="review")
    first = shown(page)
    queue = filled.pool.review.queue(View(), "trajectory", "newest", author=state.getpass.getuser())["uid"].to_pylist()
    assert first == queue[0]
    press(page, "good")
    assert shown(page) == queue[1] and quality(filled, first) == "good"
    press(page, "bad")
    assert quality(filled, queue[1]) == "bad" and "2 labelled" in page.html
    press(page, "undo")
    assert shown(page) == queue[1] and quality(filled, queue[1]) is None and "1 labelled" in page.html
    press(page, "previous")
    assert shown(page) == first
    press(page, "trainable")
    assert shown(page) == first
    assert not filled.pool.review.standing("trajectory", first)["trainable"]
    assert len(filled.pool.labels.actions()) == 3


def test_what_i_labelled_is_left_out_unless_asked_for(filled, open_page):
    me = state.getpass.getuser()
    filled.pool.labels.annotate([Annotation("quality", "good", me, "test", 1.0, trajectory_uid="traj-2-3")])
    filled.pool.labels.annotate([Annotation("quality", "bad", "another", "test", 1.0, trajectory_uid="traj-2-2")])
    page = open_page("curate", tab="review")
    assert shown(page) == "traj-2-2" and "another says" in page.html
    page.app.toggle(key="review-skip").set_value(False).run()
    assert "of 13" in page.html and "1 labelled" in page.html


def test_a_group_is_labelled_whole_in_one_entry(filled, open_page):
    page = open_page("curate", tab="review", level="group", item="prompt-1")
    assert shown(page) == "prompt-1"
    press(page, "good")
    members = filled.pool.trajectories.page(View({"prompt_uid": "prompt-1"})).to_pylist()
    assert [row["quality"] for row in members] == ["good"] * 4
    assert len(filled.pool.labels.actions()) == 1


@pytest.mark.parametrize(("level", "item"), [("step", "traj-0-0-s1"), ("trajectory", "traj-long")])
def test_the_item_of_the_url_is_where_it_starts(filled, open_page, level, item):
    page = open_page("curate", tab="review", level=level, item=item)
    assert page.failures == [] and shown(page) == item


def test_an_unknown_item_starts_at_the_front(filled, open_page):
    page = open_page("curate", tab="review", item="nobody")
    assert page.failures == [] and shown(page).startswith("traj-")


def test_nothing_left_to_review_says_so(filled, open_page):
    page = open_page("curate", tab="review", agent="nobody")
    assert page.failures == [] and "Nothing to review" in page.html


def test_correctness_is_said_and_withdrawn_in_place(filled, open_page):
    page = open_page("curate", tab="review", item="traj-1-1")
    press(page, "wrong")
    assert shown(page) == "traj-1-1" and filled.pool.review.standing("trajectory", "traj-1-1")["correct"] is False
    press(page, "wrong")
    assert filled.pool.review.standing("trajectory", "traj-1-1")["correct"] is None
    press(page, "correct")
    assert filled.pool.review.standing("trajectory", "traj-1-1")["correct"] is True
    press(page, "undo")
    assert filled.pool.review.standing("trajectory", "traj-1-1")["correct"] is None
