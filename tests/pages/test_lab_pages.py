"""Tests of Inspect, Curate, Optimise and Batch on an empty and a full pool: no failures, numbers equal core's."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from dataclasses import replace
from html import unescape

import pytest

from core.batch.plan import plan
from core.batch.recipe import Recipe, parse_recipe
from core.errors import PoolError
from core.types import Annotation, AnnotationKind, View
from studio.widgets.plans.export_job import ExportJob
from tests.pages.samples import START, agent_steps

PAGES = ("inspect", "curate", "optimise", "batch")
STEP = "traj-0-0-s1"


def figure(page, label: str) -> str:
    """The text of one number in a row of figures."""
    match = re.search(rf'<div class="l">{re.escape(label)}</div><div class="v">(.*?)</div>', page.html)
    assert match, f"no figure {label!r}"
    return unescape(match.group(1))


def components(page, name: str) -> list[dict]:
    """The data that went to the components of one kind."""
    protos = [element.proto for element in page.app.get("bidi_component")]
    return [json.loads(proto.json) for proto in protos if proto.component_name == f"claw_studio_{name}"]


def label(service, kind: str, value, **where: str) -> str:
    return service.pool.labels.annotate([Annotation(kind, value, "tester", "test", START + 1000, **where)])


@pytest.mark.parametrize("key", PAGES)
def test_empty_pool_says_what_to_do(service, open_page, key):
    page = open_page(key)
    assert page.failures == []
    assert "Load demo data" in [button.label for button in page.app.button]


@pytest.mark.parametrize(
    ("key", "params"),
    [
        ("inspect", {}),
        ("inspect", {"level": "groups"}),
        ("inspect", {"level": "steps"}),
        ("inspect", {"trajectory": "traj-0-0"}),
        ("inspect", {"step": STEP}),
        *[("inspect", {"step": STEP, "tab": tab, "about": "step"}) for tab in ("tokens", "facts", "raw", "history")],
        *[("curate", {"tab": tab}) for tab in ("label", "distributions", "history")],
        ("curate", {"level": "step"}),
        *[("optimise", {"tab": tab}) for tab in ("tree", "mask", "rows", "groups")],
        ("optimise", {"node": "1", "show": "prompt-1"}),
        ("optimise", {"show": "row:0", "tab": "mask"}),
        *[("batch", {"tab": tab}) for tab in ("chosen", "excluded", "credit", "compare", "whatif", "export", "json")],
        ("batch", {"side": "view"}),
    ],
)
def test_every_view_of_a_full_pool_opens(filled, open_page, key, params):
    page = open_page(key, **params)
    assert page.failures == []


def test_batch_shows_the_numbers_of_the_plan(filled, open_page):
    page = open_page("batch")
    totals = plan(filled.pool, View(), Recipe()).totals
    assert totals["n_trajectories"] == 12
    assert figure(page, "Groups") == str(totals["n_groups"])
    assert figure(page, "Trajectories") == str(totals["n_trajectories"])
    assert figure(page, "Steps") == str(totals["n_steps"])
    assert float(figure(page, "Token ratio")) == pytest.approx(totals["token_ratio"], abs=1e-3)


def test_a_trajectory_labelled_bad_leaves_the_plan_with_its_reason(filled, open_page):
    before = plan(filled.pool, View(), Recipe()).totals
    label(filled, AnnotationKind.QUALITY, "bad", trajectory_uid="traj-1-2")
    page = open_page("batch", tab="excluded")
    n_steps = len(filled.pool.trajectories.get("traj-1-2", tokens=False)["steps"])
    assert figure(page, "Trajectories") == str(before["n_trajectories"] - 1)
    assert figure(page, "Steps") == str(before["n_steps"] - n_steps)
    assert "Labelled bad" in page.html
    page.app.button(key="rows-labelled_bad").click()


def test_the_recipe_of_the_url_is_planned(filled, open_page):
    page = open_page("batch", recipe='{"n_rollouts": 2, "batch_size": 1}')
    assert page.failures == []
    assert figure(page, "Trajectories") == "2"
    assert figure(page, "Groups") == "1"


def test_a_recipe_that_does_not_fit_is_explained(filled, open_page):
    page = open_page("batch", recipe='{"algorithm": "alchemy"}')
    assert any("alchemy" in failure or "cs-callout bad" in failure for failure in page.failures)
    assert "alchemy" in page.html


def test_a_bad_where_is_explained_and_shows_no_rows(filled, open_page):
    page = open_page("inspect", where="n_response_tokens >")
    assert "cs-callout bad" in page.html
    assert not page.app.dataframe


def test_filters_of_the_url_narrow_the_table(filled, open_page):
    page = open_page("inspect", agent="opencode", level="steps")
    shown = page.app.dataframe[0].value
    assert len(shown) == filled.pool.steps.count(View({"agent": "opencode"}))
    assert set(shown["trajectory_uid"]) == {"traj-1-0", "traj-1-1", "traj-1-2", "traj-1-3", "traj-long"}


@pytest.mark.parametrize("level", ["steps", "trajectories"])
def test_facet_counts_leave_their_own_filter_out(filled, open_page, level):
    page = open_page("inspect", agent="opencode", level=level)
    facets = {facet["column"]: facet for facet in components(page, "facets")[0]["facets"]}
    rows = getattr(filled.pool, level).page(limit=None)
    assert dict(facets["agent"]["values"]) == Counter(rows["agent"].to_pylist())
    assert facets["agent"]["selected"] == ["opencode"]


def test_token_view_gets_every_token_and_its_text(filled, open_page):
    page = open_page("inspect", step="long-step", tab="tokens")
    sent = components(page, "tokens")[0]
    step = filled.pool.steps.get("long-step")
    assert sent["n_prompt"] == 32_000
    texts = {token: text for token, text, _ in sent["vocab"]}
    assert set(texts) == {*step["prompt_ids"].tolist(), *step["response_ids"].tolist()}
    assert any("same hash" in note for note in sent["notes"])


def test_a_step_is_shown_as_a_delta(filled, open_page):
    page = open_page("inspect", step=STEP)
    entries = components(page, "messages")[0]["entries"]
    assert [entry["kind"] for entry in entries] == ["folded", "message", "message"]
    assert entries[0]["n"] == 3
    assert entries[1]["role"] == "tool"
    assert entries[1]["calls"][0]["name"] == "list_files"
    assert "amount,region" in entries[1]["calls"][0]["result"]["parts"][0]["text"]
    assert entries[2]["sampled"]


def test_quality_button_appends_and_withdraws(filled, open_page):
    page = open_page("inspect", trajectory="traj-0-0", about="trajectory")
    page.app.button(key="label-trajectory-traj-0-0-bad").click().run()
    assert filled.pool.trajectories.get("traj-0-0", tokens=False)["quality"] == "bad"
    page.app.button(key="label-trajectory-traj-0-0-bad").click().run()
    assert filled.pool.trajectories.get("traj-0-0", tokens=False)["quality"] is None
    assert [row["kind"] for row in filled.pool.labels.annotations(trajectory_uid="traj-0-0")] == ["quality", "quality"]


def test_labels_that_are_clicked_faster_than_the_page_is_drawn_are_all_kept(filled, open_page):
    """A slow server gets several clicks in one run, and a number that was typed just before its click."""
    page = open_page("inspect", trajectory="traj-0-0", about="trajectory")
    page.app.number_input[0].set_value(0.25).run()
    page.app.number_input[0].set_value(0.75)
    for name in ("bad", "correct-False", "set"):
        page.app.button(key=f"label-trajectory-traj-0-0-{name}").click()
    page.app.run()
    assert page.failures == []
    trajectory = filled.pool.trajectories.get("traj-0-0", tokens=False)
    assert (trajectory["quality"], trajectory["correct"], trajectory["reward"]) == ("bad", False, 0.75)


def test_a_label_that_is_refused_says_why(filled, open_page, monkeypatch):
    def full(*_: object, **__: object) -> str:
        raise PoolError("the disk is full", hint="free some space")

    page = open_page("inspect", trajectory="traj-0-0", about="trajectory")
    monkeypatch.setattr(filled.pool.labels, "annotate", full)
    page.app.button(key="label-trajectory-traj-0-0-bad").click().run()
    assert "the disk is full" in page.html + "".join(one.value for one in page.app.error)
    assert filled.pool.trajectories.get("traj-0-0", tokens=False)["quality"] is None


def test_reward_edit_lies_over_the_captured_one(filled, open_page):
    page = open_page("inspect", step=STEP, about="step")
    page.app.number_input[0].set_value(0.75).run()
    page.app.button(key=f"label-step-{STEP}-set").click().run()
    step = filled.pool.steps.get(STEP)
    assert step["reward"] == 0.75
    assert step["original_reward"] is None


def test_bulk_on_all_matching_and_back(filled, open_page):
    page = open_page("curate", agent="opencode")
    page.app.get("button_group")
    page.app.session_state["scope-trajectory"] = "all"
    page.app.run()
    page.app.button(key="apply").click().run()
    view = View({"agent": "opencode"})
    qualities = filled.pool.trajectories.page(view)["quality"].to_pylist()
    assert qualities == ["bad"] * 5
    page = open_page("curate", tab="history")
    page.app.button(key="undo-last").click().run()
    assert filled.pool.trajectories.page(view)["quality"].to_pylist() == [None] * 5
    page.app.button(key="redo-last").click().run()
    assert filled.pool.trajectories.page(view)["quality"].to_pylist() == ["bad"] * 5


def test_preview_is_what_the_plan_becomes(filled, open_page):
    page = open_page("curate", agent="opencode")
    page.app.session_state["scope-trajectory"] = "all"
    page.app.run()
    shown = figure(page, "Plan: trajectories")
    page.app.button(key="apply").click().run()
    assert shown == f"12 → {plan(filled.pool, View(), Recipe()).totals['n_trajectories']}"


def test_optimise_shows_the_layout_of_the_plan(filled, open_page):
    page = open_page("optimise", recipe='{"token_budget": 1024}')
    made = plan(filled.pool, View(), parse_recipe({"token_budget": 1024}))
    assert figure(page, "Rows") == str(len(made.layout.rows))
    assert float(figure(page, "Token ratio")) == pytest.approx(made.layout.token_ratio, abs=1e-3)
    tree = components(page, "tree")[0]
    steps = [uid for one in made.groups[0].trajectories for uid in one.step_uids]
    assert tree["n_sequences"] == len(steps)
    assert tree["n_original"] == int(filled.pool.steps.sequences(steps).lengths.sum())


def test_packed_rows_hold_the_tokens_of_the_layout(filled, open_page):
    page = open_page("optimise", recipe='{"token_budget": 1024}', tab="rows")
    rows = components(page, "rows")[0]["rows"]
    made = plan(filled.pool, View(), parse_recipe({"token_budget": 1024}))
    assert [row["n_tokens"] for row in rows] == made.layout.row_tokens.tolist()
    assert [sum(segment[0] for segment in row["segments"]) for row in rows] == made.layout.row_tokens.tolist()


def test_export_writes_the_plan_of_the_page(filled, open_page):
    page = open_page("batch", tab="export")
    next(button for button in page.app.button if button.label == "Export").click()
    page.app.run()
    job = page.app.session_state["export-job"]
    job.join(30)
    page.app.run()
    assert page.failures == []
    result = job.result
    made = plan(filled.pool, View(), Recipe())
    assert result.manifest["plan"]["hash"] == made.hash
    assert result.n_rows == len(made.steps)
    assert result.path.name in page.html


def test_a_cancelled_export_leaves_nothing_and_says_so(filled, tmp_path):
    made = plan(filled.pool, View(), Recipe())
    first_group = threading.Event()

    class Slow:
        """The pool, held up until the export was cancelled."""

        @property
        def training(self):
            return self

        def sequences(self, step_uids):
            first_group.wait(30)
            return filled.pool.steps.sequences(step_uids)

        def trajectory(self, uid, *, tokens=True):
            return filled.pool.trajectories.get(uid, tokens=tokens)

    job = ExportJob(made, Slow(), "trl_sft", tmp_path / "out", {}, filled.clock)
    assert job.running
    job.cancel()
    first_group.set()
    job.join(30)
    assert not job.running and job.result is None and job.error.type == "cancelled"
    assert list((tmp_path / "out").iterdir()) == []


def test_estimators_side_by_side_are_the_plans_own(filled, open_page):
    page = open_page("batch", tab="compare", credit_of="traj-0-0")
    assert page.failures == []
    made = plan(filled.pool, View(), Recipe())
    (row,) = [row for row in made.trajectories.to_pylist() if row["trajectory_uid"] == "traj-0-0"]
    assert f'<td class="n">{row["advantage"]:+.3f}</td>' in page.html
    assert "GRPO (trajectory)" in page.html and "GiGPO" not in page.html
    next(box for box in page.app.multiselect if box.label == "Estimators").select("gigpo").run()
    assert page.failures == []
    assert "GiGPO" in page.html and "set the option anchor to observation" in page.html


def test_what_if_counts_are_plans_and_a_value_goes_into_the_recipe(filled, open_page):
    page = open_page("batch", tab="whatif")
    assert page.failures == []
    next(box for box in page.app.selectbox if box.label == "Field").select("n_rollouts").run()
    next(box for box in page.app.selectbox if box.label == "Use").select(2).run()
    next(button for button in page.app.button if button.label == "Use this value in the recipe").click().run()
    assert page.failures == []
    assert json.loads(page.app.query_params["recipe"]) == {"n_rollouts": 2}
    made = plan(filled.pool, View(), parse_recipe({"n_rollouts": 2}))
    assert figure(page, "Trajectories") == str(len(made.trajectories))


def test_a_tree_of_two_tokenizers_shows_ids_only(filled, open_page):
    known, _ = agent_steps()
    other = [
        replace(
            step,
            step_uid=f"other-{n}",
            trajectory_uid=f"other-{n}",
            parent_step_uid=None,
            n_shared_tokens=0,
            n_shared_messages=0,
            model="another",
            tokenizer_hash="0" * 64,
        )
        for n, step in enumerate([known[0], known[0]])
    ]
    completions = [{"trajectory_uid": step.trajectory_uid, "reward": float(n)} for n, step in enumerate(other)]
    filled.pool.steps.append(other, completions=completions)
    page = open_page("optimise", show="prompt-0", node="0")
    assert page.failures == []
    assert components(page, "tree")[0]["labels"] is None
    assert "different tokenizers" in page.html


def test_an_unknown_trajectory_says_so_and_leads_back(filled, open_page):
    page = open_page("inspect", trajectory="nobody")
    assert "nobody" in page.html
    page.app.button(key="back").click().run()
    assert page.app.dataframe


@pytest.mark.parametrize(
    ("key", "params", "name", "label", "value"),
    [
        ("batch", {"tab": "export"}, "format", "Format", "trl_grpo"),
        ("batch", {"tab": "whatif"}, "field", "Field", "n_rollouts"),
        ("batch", {"tab": "whatif"}, "counted", "Counted", "n_tokens"),
        ("batch", {"tab": "compare"}, "credit_of", "Trajectory", "traj-1-2"),
        ("curate", {"tab": "reviewers"}, "of", "Level", "step"),
    ],
)
def test_what_a_list_says_stands_in_the_url(filled, open_page, key, params, name, label, value):
    def shown(page):
        return next(box for box in page.app.selectbox if box.label == label)

    page = open_page(key, **params)
    assert shown(page).value != value
    shown(page).select(value).run()
    assert page.failures == []
    assert page.app.query_params[name] in (value, [value])
    assert shown(open_page(key, **params, **{name: value})).value == value
