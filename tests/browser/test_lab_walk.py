"""Browser test of the way of data through the pages: trajectory, step, tokens, label, plan, file."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.pool import Pool
from core.types import View
from tests.browser.conftest import settled_box, start_studio
from tests.pages.samples import agent_steps, long_step, title_step

QUIET = {"CLAW_STUDIO_ENGINE": "http://127.0.0.1:9/v1"}
LONGEST_MS = 1500


def fill(folder: Path) -> dict[str, int]:
    """A pool file with three groups of four trajectories; what the default plan makes of it."""
    (folder / "data").mkdir(parents=True)
    pool = Pool.open(folder / "data" / "pool.duckdb")
    steps, completions = agent_steps()
    pool.steps.append([*steps, title_step(), long_step()], completions=completions)
    totals = plan(pool, View(), Recipe()).totals
    pool.close()
    return totals


@pytest.fixture
def lab(tmp_path, browser):
    """A studio of its own on a filled pool, with the plan's totals before anyone labels."""
    totals = fill(tmp_path)
    running = start_studio(tmp_path, env=QUIET)
    running.totals = totals
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory, browser):
    """One filled studio for tests that only look."""
    folder = tmp_path_factory.mktemp("lab")
    totals = fill(folder)
    running = start_studio(folder, env=QUIET)
    running.totals = totals
    yield running
    running.stop()


def figure(page: Page, label: str):
    """The value in the row of figures under exactly this label."""
    return page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile(f"^{re.escape(label)}$"))).locator(".v")


def click_cell(page: Page, row: int, column_x: int = 60) -> None:
    """Click into a table: its cells are painted on a canvas, which a page that is still running may replace."""
    table = page.get_by_test_id("stDataFrame").first
    expect(table.locator("canvas").first).to_be_visible()
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    settled_box(table)
    table.click(position={"x": column_x, "y": 36 + 29 * row + 14})


def test_from_table_to_token_to_label_to_file(lab, watch):
    watched = watch(f"{lab.url}/inspect")
    page = watched.page
    expect(page.get_by_text("1–13 of 13 trajectories")).to_be_visible()
    click_cell(page, 0)
    expect(page).to_have_url(re.compile(r"trajectory=traj-"))
    uid = re.search(r"trajectory=([\w-]+)", page.url).group(1)

    page.locator("button.row").nth(1).click()
    expect(page).to_have_url(re.compile(f"step={uid}-s1"))
    expect(page.locator("details.history")).to_contain_text("3 messages")
    expect(page.locator("article.sampled")).to_be_visible()
    expect(page.locator("article .call .side").nth(1)).to_contain_text("amount,region")

    page.get_by_role("radio", name="Tokens").click()
    expect(page.locator(".t").first).to_be_visible()
    expect(page).to_have_url(re.compile("tab=tokens"))
    page.locator(".t.special").first.hover()
    expect(page.locator(".tip")).to_contain_text("<|im_")

    page.get_by_role("button", name="Bad").click()
    expect(figure(page, "Quality")).to_have_text("bad")

    page.goto(f"{lab.url}/batch?tab=excluded")
    expect(figure(page, "Trajectories")).to_have_text(str(lab.totals["n_trajectories"] - 1))
    expect(page.get_by_text("Labelled bad, the step or its whole trajectory")).to_be_visible()
    n_left = int(figure(page, "Steps").inner_text())
    assert n_left < lab.totals["n_steps"]

    page.get_by_role("radio", name="Export").click()
    page.get_by_test_id("stBaseButton-primary").click()
    expect(page.get_by_text("sha256").first).to_be_visible()
    (path,) = (lab.data_dir / "exports").glob("*.parquet")
    rows = pq.read_table(path)
    assert len(rows) == n_left
    assert rows.column_names == ["input_ids", "labels"]


def test_rows_behind_a_reason_are_one_click_away(shared_lab, watch):
    watched = watch(f"{shared_lab.url}/batch?tab=excluded")
    page = watched.page
    row = page.locator("[data-testid=stHorizontalBlock]", has_text="Step not trainable").last
    row.get_by_role("button", name="Rows").click()
    expect(page.locator(".cs-head h1")).to_have_text("Inspect")
    expect(page.get_by_text("1–1 of 1 step")).to_be_visible()


def test_facets_narrow_and_come_off(shared_lab, watch):
    watched = watch(f"{shared_lab.url}/inspect")
    page = watched.page
    page.locator("button.value[data-facet=agent][data-value=opencode]").click()
    expect(page).to_have_url(re.compile("agent=opencode"))
    expect(page.get_by_text("1–5 of 5 trajectories")).to_be_visible()
    page.reload()
    expect(page.get_by_text("1–5 of 5 trajectories")).to_be_visible()
    page.get_by_role("button", name="agent: opencode").click()
    expect(page.get_by_text("1–13 of 13 trajectories")).to_be_visible()


def test_a_context_of_32k_tokens_opens_without_a_freeze(shared_lab, watch):
    watched = watch(f"{shared_lab.url}/inspect?step=long-step&tab=tokens")
    page = watched.page
    expect(page.locator(".status")).to_contain_text("32,000 prompt + 900 response tokens")
    expect(page.locator(".heading.response")).to_be_visible()
    assert page.locator(".t").count() < 12_000
    started = "performance.now()"
    before = page.evaluate(started)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".t[data-i='0']")).to_be_visible()
    search = page.get_by_label("Find in tokens")
    search.fill("quick brown")
    expect(page.locator(".found")).to_contain_text("/")
    assert page.evaluate(started) - before < LONGEST_MS * 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tree_and_mask_are_drawn(shared_lab, watch, scheme):
    watched = watch(f"{shared_lab.url}/optimise", color_scheme=scheme)
    page = watched.page
    canvas = page.get_by_role("img", name="Prefix tree")
    expect(canvas).to_be_visible()
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    canvas.click(position={"x": 30, "y": 200})
    expect(page).to_have_url(re.compile("node=0"))
    expect(page.get_by_text("Node 0")).to_be_visible()
    page.get_by_role("radio", name="Attention mask").click()
    mask = page.get_by_role("img", name="Attention mask of")
    expect(mask).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    mask.hover(position={"x": 60, "y": 200})
    expect(page.locator(".tip:visible")).to_contain_text("visible")
    page.get_by_role("radio", name="Packed rows").click()
    expect(page.locator("button.line")).to_have_count(1)


def test_bulk_label_on_all_matching_and_undo(lab, watch):
    watched = watch(f"{lab.url}/curate?agent=opencode")
    page = watched.page
    expect(page.get_by_text("All 5 matching")).to_be_visible()
    page.get_by_text("All 5 matching").click()
    n = lab.totals["n_trajectories"]
    expect(figure(page, "Plan: trajectories")).to_have_text(f"{n} → {n - 4}")
    page.get_by_role("button", name="Apply to 5 trajectories").click()
    expect(figure(page, "Plan: trajectories")).to_have_text(str(n - 4))
    page.get_by_role("radio", name="History").click()
    page.get_by_role("button", name="Undo the last").click()
    expect(page.get_by_role("button", name="Redo", exact=True)).to_be_enabled()
    page.goto(f"{lab.url}/batch")
    expect(figure(page, "Trajectories")).to_have_text(str(n))


def test_picks_survive_paging_by_uid(lab, watch):
    watched = watch(f"{lab.url}/curate?level=step")
    page = watched.page
    expect(page.get_by_text(re.compile(r"1–50 of \d+ steps"))).to_be_visible()
    click_cell(page, 0, 16)
    expect(page.get_by_text("Selected: 1")).to_be_visible()
    first = re.search(r"picked=([\w-]+)", page.url).group(1)
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text(re.compile(r"51–\d+ of \d+ steps"))).to_be_visible()
    click_cell(page, 0, 16)
    expect(page.get_by_text("Selected: 2")).to_be_visible()
    assert first in page.url
    page.get_by_role("button", name="Deselect all").click()
    expect(page.get_by_text("Selected: 0")).to_be_visible()
