"""Tests of groups and comparisons on Inspect: shown values equal those of the plan and the tokens."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.types import Annotation, View
from tests.pages.test_lab_pages import components, figure


def test_a_group_shows_its_plan_and_where_siblings_part(filled, open_page):
    page = open_page("inspect", group="prompt-1")
    assert page.failures == []
    rows = components(page, "siblings")[0]["rows"]
    made = plan(filled.pool, View({"prompt_uid": "prompt-1"}), Recipe())
    assert {row["uid"]: row["advantage"] for row in rows} == dict(
        zip(made.trajectories["trajectory_uid"].to_pylist(), made.trajectories["advantage"].to_pylist(), strict=True)
    )
    assert [row["reference"] for row in rows] == [True, False, False, False]
    reference = filled.pool.trajectories.get(rows[0]["uid"])["steps"]
    for row in rows[1:]:
        steps = filled.pool.trajectories.get(row["uid"])["steps"]
        pairs = [[[*s["prompt_ids"], *s["response_ids"]] for s in pair] for pair in zip(reference, steps, strict=False)]
        place = next(n for n, (a, b) in enumerate(pairs) if a != b)
        a, b = pairs[place]
        assert row["parts"] == place
        assert a[: row["token"]] == b[: row["token"]] and a[row["token"]] != b[row["token"]]
    assert figure(page, "Success") == "50.0 %" and figure(page, "Difficulty") == "0.5"


def test_another_reference_is_in_the_url(filled, open_page):
    page = open_page("inspect", group="prompt-1", reference="traj-1-2")
    rows = components(page, "siblings")[0]["rows"]
    assert [row["uid"] for row in rows if row["reference"]] == ["traj-1-2"]


def test_a_flat_group_is_marked(filled, open_page):
    uids = [f"traj-0-{r}" for r in range(4)]
    filled.pool.labels.annotate([Annotation("reward", 1.0, "me", "test", 1.0, trajectory_uid=uid) for uid in uids])
    assert figure(open_page("inspect", group="prompt-0"), "Variance") == "none"


@pytest.mark.parametrize("tab", ["messages", "tokens", "facts"])
def test_two_steps_side_by_side(filled, open_page, tab):
    page = open_page("inspect", compare=["traj-0-0-s1", "traj-0-1-s1"], tab=tab)
    assert page.failures == []
    steps = [filled.pool.steps.get(uid) for uid in ("traj-0-0-s1", "traj-0-1-s1")]
    a, b = (np.concatenate([s["prompt_ids"], s["response_ids"]]) for s in steps)
    at = next(n for n, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])
    assert figure(page, "First difference") == f"token {at}"
    if tab == "tokens":
        assert [one["diverges"] for one in components(page, "tokens")] == [at, at]
    if tab == "messages":
        first, second = (one["entries"] for one in components(page, "messages"))
        assert first[0]["kind"] == second[0]["kind"] == "folded"
        assert first[0]["n"] == second[0]["n"] >= 2


def test_two_trajectories_open_where_they_part(filled, open_page):
    page = open_page("inspect", compare=["traj-0-0", "traj-0-1"])
    assert page.failures == []
    parts = components(page, "siblings")[0]["rows"][1]["parts"]
    assert figure(page, "First difference") == f"step {parts}"
    assert f"position {parts + 1} of" in " ".join(caption.value for caption in page.app.caption)
    steps = (
        len(filled.pool.trajectories.get("traj-0-0")["steps"]),
        len(filled.pool.trajectories.get("traj-0-1")["steps"]),
    )
    last = open_page("inspect", compare=["traj-0-0", "traj-0-1"], place=str(max(steps)))
    assert last.failures == []


def test_a_trajectory_with_itself_parts_nowhere(filled, open_page):
    page = open_page("inspect", compare=["traj-0-0", "traj-0-0"])
    assert page.failures == [] and figure(page, "First difference") == "none"


def test_a_step_beside_a_trajectory_is_its_trajectory(filled, open_page):
    page = open_page("inspect", compare=["traj-0-0-s1", "traj-0-1"])
    assert page.failures == []
    assert [row["uid"] for row in components(page, "siblings")[0]["rows"]] == ["traj-0-0", "traj-0-1"]


def test_an_unknown_one_is_said(filled, open_page):
    page = open_page("inspect", compare=["traj-0-0", "nobody"])
    assert any("nobody" in failure for failure in page.failures)


def test_tokens_carry_the_plans_advantage_and_the_first_difference(filled, open_page):
    page = open_page("inspect", step="traj-1-2-s1", tab="tokens", against="traj-1-0-s1")
    sent = components(page, "tokens")[0]
    made = plan(filled.pool, View({"prompt_uid": "prompt-1"}), Recipe())
    wanted = {row["trajectory_uid"]: row["advantage"] for row in made.trajectories.to_pylist()}["traj-1-2"]
    values = np.frombuffer(base64.b64decode(sent["advantages"]), dtype="<f4")
    step = filled.pool.steps.get("traj-1-2-s1")
    assert len(values) == len(step["response_ids"]) and np.allclose(values, wanted)
    assert sent["in_loss"] and "traj-1-0-s1" in sent["against"]
    other = filled.pool.steps.get("traj-1-0-s1")
    a, b = ([*s["prompt_ids"], *s["response_ids"]] for s in (step, other))
    assert a[: sent["diverges"]] == b[: sent["diverges"]] and a[sent["diverges"]] != b[sent["diverges"]]


def test_a_step_outside_the_plan_has_no_advantage_and_says_why(filled, open_page):
    page = open_page("inspect", step="traj-0-0-title", tab="tokens")
    sent = components(page, "tokens")[0]
    assert sent["advantages"] is None and not sent["in_loss"]
    assert any("not trainable" in note for note in sent["notes"])


def test_the_raw_record_is_whole_and_the_life_is_on_the_facts(filled, open_page):
    sent = components(open_page("inspect", step="long-step", tab="raw"), "plain")[0]
    step = filled.pool.steps.get("long-step")
    record = json.loads(sent["text"])
    assert record["prompt_ids"] == step["prompt_ids"].tolist() and record["messages"] == step["messages"]
    assert sent["name"] == "long-step.json"
    page = open_page("inspect", step="traj-0-0-s1", tab="facts")
    assert page.failures == []
    reached = {stage for stage, moment in filled.pool.steps.stage_times("traj-0-0-s1").items() if moment is not None}
    assert {"generated", "ingested", "scored", "completed", "ready"} <= reached
    for stage in reached:
        assert f"<i></i><b>{stage}</b><span>—" not in page.html
