"""Browser tests of Batch and Consume: estimators, an export, a trainer's batches, a recipe changed live."""

from __future__ import annotations

import json
import re

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import expect

from core.client import StudioClient
from core.trainer import Trainer
from tests.api.test_batches import RECIPE, wire_steps
from tests.browser.conftest import settled_box

pytestmark = pytest.mark.timeout(240)


def figure(page, label):
    return page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile(f"^{label}$"))).locator(".v")


@pytest.fixture(scope="module")
def trained(shared_studio):
    """Six groups of two rollouts; two batches consumed, one held."""
    client = StudioClient(shared_studio.gateway_url)
    for version in range(2):
        client.policy(version, "sync_started")
        client.policy(version, "sync_finished")
    for number in range(6):
        client.submit(step for k in range(2) for step in wire_steps(f"g{number}", k))
    client.call("PUT", "/api/v1/recipes/main", {"recipe": RECIPE})
    client.call("PUT", "/api/v1/channels/train/recipe", {"name": "main"})
    with Trainer(client, "trainer-1") as trainer:
        for update in range(2):
            trainer.fetch().ack(update=update, metrics={"loss": 1.0 - update / 2})
        held = trainer.fetch()
        yield shared_studio, client, held


def test_a_trainers_batches_are_seen_and_opened(trained, watch):
    studio, _, held = trained
    page = watch(f"{studio.url}/consume").page
    expect(figure(page, "Groups to fetch")).to_have_text("3")
    expect(figure(page, "Consumed")).to_have_text("2")
    expect(figure(page, "Policy version")).to_have_text("1")
    points = page.locator(".js-plotly-plot").first.locator(".scatterlayer .point")
    expect(points).to_have_count(3)
    box = settled_box(points.last)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page).to_have_url(re.compile("batch="))
    expect(page.locator(".cs-section h3", has_text="Timeline")).to_be_visible()
    page.goto(f"{studio.url}/consume?batch={held.uid}")
    expect(figure(page, "Recipe")).to_have_text("main v1")
    page.get_by_role("button", name="Show steps").click()
    expect(page.get_by_text("1–4 of 4 steps")).to_be_visible()


def test_a_recipe_changed_on_the_page_is_the_next_fetchs(trained, watch):
    studio, client, _ = trained
    page = watch(f"{studio.url}/consume").page
    groups = page.get_by_role("spinbutton", name="Groups")
    groups.fill("2")
    groups.press("Enter")
    expect(page.get_by_text("compared with now").first).to_be_visible()
    page.get_by_role("button", name="Use for the next fetch").click()
    expect(page.get_by_text("main v2")).to_be_visible()
    got = client.call("POST", "/api/v1/batches/fetch", {"consumer": "trainer-2"})
    assert (got["recipe_version"], got["totals"]["n_groups"]) == (2, 2)
    client.call("POST", f"/api/v1/batches/{got['batch_uid']}/release", {})


def test_credit_what_if_and_export_on_the_batch_page(trained, watch):
    studio, client, _ = trained
    page = watch(f"{studio.url}/batch?tab=compare").page
    expect(page.locator(".js-plotly-plot .heatmaplayer")).to_be_visible()
    expect(page.locator("table.cs-table").first).to_contain_text("GRPO (trajectory)")
    planned = client.call("POST", "/api/v1/plans", {"recipe": {"algorithm": "grpo"}})
    advantage = planned["groups"][0]["trajectories"][0]["advantage"]
    expect(page.locator("table.cs-table").first).to_contain_text(f"{advantage:+.3f}")

    page.goto(f"{studio.url}/batch?tab=whatif")
    expect(page.locator(".js-plotly-plot .bars .point")).to_have_count(9)

    page.goto(f"{studio.url}/batch?tab=export")
    page.get_by_role("button", name="Export").click()
    expect(page.get_by_text("· sha256")).to_be_visible()
    (path,) = (studio.data_dir / "exports").glob("trl_sft*.parquet")
    assert len(pq.read_table(path)) == planned["totals"]["n_steps"]
    manifest = json.loads(path.with_name(path.name + ".manifest.json").read_text())
    assert manifest["plan"]["hash"] == planned["hash"]
