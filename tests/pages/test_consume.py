"""Tests of the Consume page: an empty pool, batches in every state, one batch, an edited recipe and its effect."""

from __future__ import annotations

import json
import time

import pytest

from core.batch.leases import Fetch
from core.batch.pace import Sync
from core.types import PolicyEvent, PolicyEventKind
from studio.charts.consume import batches_over_time
from studio.widgets.consume import batch_view
from tests.pages.test_lab_pages import figure

GRPO = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 1}


@pytest.fixture
def consumed(filled):
    """One batch consumed, one released, one leased."""
    pool, leases = filled.pool, filled.leases
    uids = [leases.fetch(Fetch(name, recipe=GRPO)).batch["batch_uid"] for name in ("a", "b")]
    pool.batches.finish(uids[0], "acked", update=3, metrics={"loss": 0.25, "kl": 0.01})
    pool.batches.finish(uids[1], "released", detail={"reason": "crashed"})
    uids.append(leases.fetch(Fetch("b", recipe=GRPO)).batch["batch_uid"])
    return filled, uids


def test_an_empty_pool_and_a_pool_nobody_took_from(service, filled, open_page):
    page = open_page("consume")
    assert page.failures == []
    assert "No batch was fetched yet" in page.html
    assert figure(page, "Groups to fetch") == "3"
    assert any("Trainer(" in block.value for block in page.app.code)


def test_numbers_are_the_pools(consumed, open_page):
    service, uids = consumed
    page = open_page("consume")
    assert page.failures == []
    rows = {row["batch_uid"]: row for row in service.pool.consumption.batches()}
    assert (figure(page, "Leased"), figure(page, "Consumed")) == ("1", "1")
    ready = service.leases.preview(Fetch("studio", recipe={**GRPO, "batch_size": None, "n_rollouts": None}))
    assert figure(page, "Groups to fetch") == str(ready.n_groups)
    assert f"{rows[uids[0]]['n_steps']} steps" in page.html


@pytest.mark.parametrize("tab", ["batches", "metrics", "consumers", "off-policy", "syncs"])
def test_every_table(consumed, open_page, tab):
    page = open_page("consume", tab=tab)
    assert page.failures == []


def test_log_prob_differences_by_version_that_sampled(filled, open_page):
    """Means are over tokens, not over steps; a step measured twice counts with its last values."""
    pool = filled.pool
    uid = filled.leases.fetch(Fetch("a", recipe=GRPO)).batch["batch_uid"]
    version = pool.batches.get(uid)["policy_version"]
    steps = filled.leases.plan_of(uid).steps
    held = dict(zip(steps["step_uid"].to_pylist(), steps["policy_version"].to_pylist(), strict=True))
    metrics = {
        step: {"n_compared": n, "logprob_difference_mean": n / 10, "logprob_difference_max": n / 5, "kl": n / 100}
        for n, step in enumerate(held, 1)
    }
    first = next(iter(held))
    pool.batches.add_metrics(uid, None, {}, [(first, {**metrics[first], "logprob_difference_mean": 9.0})])
    pool.batches.finish(uid, "acked", update=1, steps=list(metrics.items()))
    rows = pool.consumption.differences(channel="train")
    assert len(held) > 1 and {row["version"] for row in rows} == {version}
    for row in rows:
        ns = [n for n, step in enumerate(held, 1) if held[step] == row["sampled_version"]]
        assert row["n_tokens"] == sum(ns) and row["staleness"] == version - row["sampled_version"]
        assert row["mean"] == pytest.approx(sum(n * n / 10 for n in ns) / sum(ns))
        assert row["greatest"] == pytest.approx(max(ns) / 5)
        assert row["kl"] == pytest.approx(sum(n * n / 100 for n in ns) / sum(ns))
    page = open_page("consume", tab="off-policy", difference="kl")
    assert page.failures == [] and "KL per token" in page.html


def test_one_batch_shows_its_life_and_can_be_given_back(consumed, open_page):
    service, uids = consumed
    page = open_page("consume", batch=uids[0])
    assert page.failures == []
    assert figure(page, "Update") == "3"
    assert "loss" in page.html and "acked" in page.html
    assert "Release" not in [button.label for button in page.app.button]
    held = open_page("consume", batch=uids[2])
    next(button for button in held.app.button if button.label == "Release").click()
    held.app.run()
    assert held.failures == []
    assert service.pool.batches.get(uids[2])["state"] == "released"


def test_a_changed_recipe_shows_its_effect_before_it_is_used(consumed, open_page):
    service, _ = consumed
    page = open_page("consume", recipe=json.dumps({"n_rollouts": 40}))
    assert page.failures == []
    assert "compared with now" in page.html and "Not enough for a batch" in "".join(c.value for c in page.app.caption)
    next(button for button in page.app.button if button.label == "Use for the next fetch").click()
    page.app.run()
    assert page.failures == []
    active = service.pool.recipes.active("train")
    assert (active["name"], active["version"], active["recipe"]["n_rollouts"]) == ("default", 1, 40)
    assert service.leases.fetch(Fetch("a")).batch is None


def test_a_field_that_is_changed_just_before_the_click_is_shown_first(consumed, open_page):
    """A slow server gets both in one run: it uses no recipe that lacks what the person sees in the field."""
    service, _ = consumed
    page = open_page("consume", recipe=json.dumps({"n_rollouts": 40}))

    def use() -> None:
        next(button for button in page.app.button if button.label == "Use for the next fetch").click()

    next(one for one in page.app.selectbox if one.label == "Algorithm").set_value("rloo")
    use()
    page.app.run()
    assert page.failures == [] and service.pool.recipes.active("train") is None
    assert "rloo" in page.html
    use()
    page.app.run()
    recipe = service.pool.recipes.active("train")["recipe"]
    assert (recipe["algorithm"], recipe["n_rollouts"]) == ("rloo", 40)


def test_a_step_says_who_consumed_it(consumed, open_page):
    service, uids = consumed
    step = service.leases.plan_of(uids[0]).step_uids[0]
    page = open_page("inspect", step=step, tab="facts")
    assert page.failures == []
    assert f"batch={uids[0]}" in page.html and "acked" in page.html


def test_a_long_run_is_counted_whole_and_listed_by_the_page(consumed, open_page, monkeypatch):
    monkeypatch.setattr(batch_view, "BATCHES", 2)
    page = open_page("consume", page="2")
    assert page.failures == []
    assert (figure(page, "Leased"), figure(page, "Consumed")) == ("1", "1")
    listed = page.app.dataframe[0].value
    assert listed["state"].tolist() == ["acked"] and listed["consumer"].tolist() == ["a"]
    assert any("3–3 of 3 batches" in one.value for one in page.app.caption)
    assert "the newest 2 of 3, one dot each" in page.html


def test_weight_syncs_come_by_the_page(consumed, open_page, monkeypatch):
    service, _ = consumed
    monkeypatch.setattr(batch_view, "SYNC_ROWS", 4)
    kinds = (PolicyEventKind.SYNC_STARTED, PolicyEventKind.SYNC_FINISHED)
    service.pool.steps.append(
        [], policy_events=[PolicyEvent(v, kind, 1_800_000_000.0 + v) for v in range(10) for kind in kinds]
    )
    page = open_page("consume", tab="syncs", page="2")
    assert page.failures == []
    assert [f"<td>{version}</td>" in page.html for version in (6, 5, 2, 1)] == [False, True, True, False]


def test_a_thousand_weight_syncs_are_drawn_at_once_and_none_before_the_first_batch():
    rows = [
        {"batch_uid": "b", "consumer": "c", "n_groups": 1, "n_steps": 5, "state": "acked", "leased_at": 5000.0 + at}
        for at in (0, 900)
    ]
    done = [Sync(version, 4000.0 + version, 4000.5 + version) for version in range(2000)]
    began = time.process_time()
    drawn = batches_over_time(rows, done).data[-1]
    assert time.process_time() - began < 2
    assert drawn.name == "weight sync, 1 in 3" and not drawn.y[2::3][0]
    times = [at.timestamp() for at in drawn.x[::3]]
    assert times == [4000.5 + version for version in range(1999, 999, -3)]
    few = batches_over_time(rows, done[1500:1503]).data[-1]
    assert few.name == "weight sync" and len(few.x) == 9


@pytest.mark.parametrize(("button", "in_force"), [("end-sync", 3), ("finish-sync", 4)])
def test_a_sync_that_nobody_finishes_can_be_ended(service, open_page, button, in_force):
    service.policy.apply("registered", 3, at=1.0)
    assert not open_page("consume").app.warning
    service.policy.apply("sync_started", 4, at=2.0)
    page = open_page("consume")
    assert page.failures == [] and "Calls wait for it" in page.app.warning[0].value
    service.policy.sync_timeout_s = 1e-9
    page = open_page("consume")
    assert "was not finished" in page.app.warning[0].value
    assert any(finding["check"] == "weight sync" and finding["state"] == "bad" for finding in service.health())
    page.app.button(key=button).click().run()
    assert service.policy.sync_json() is None
    assert service.policy.version == in_force
    assert not any(finding["check"] == "weight sync" for finding in service.health())
