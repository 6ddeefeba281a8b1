"""Browser test of the Synthesis page: a run from the estimate to the stored pack, with a row that a person accepts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import scripted_engine
from tests.synthesis.tasks import JUDGE, OTHERS, SOUND, WRITE, rule, seeds, task, usual

from .conftest import start_studio

MINUTES_MS = 60_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Any:
    """A studio whose engine writes a task, a malformed answer, and a task in which the judge finds a leak."""
    folder = tmp_path_factory.mktemp("synthesis")
    seeds(folder / "seeds")
    answers = [task("BAKERY"), '{"question": "HALF', task("LEAKED", question=OTHERS["HARBOUR"])]
    leak = rule({**SOUND, "has_answer_leak": True, "reasons": "the total is in the question"}, JUDGE, "HARBOUR")
    with scripted_engine(
        folder, {"rules": [*(rule(one, WRITE, times=1) for one in answers), leak, *usual()]}
    ) as engine:
        running = start_studio(folder / "studio", env={"CLAW_STUDIO_ENGINE": str(engine.base_url)})
        yield running, folder
        running.stop()


def shot(page: Page, name: str) -> None:
    """Pictures in dark and light, where ``CLAW_SHOTS`` names a folder."""
    if folder := os.environ.get("CLAW_SHOTS"):
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1500)
            page.screenshot(path=Path(folder, f"{name}-{scheme}.png"))


@pytest.mark.timeout(900)
def test_a_run_from_the_estimate_to_the_pack(place: Any, watch: Any) -> None:
    studio, folder = place
    page: Page = watch(f"{studio.url}/synthesis").page
    expect(page.get_by_text("No run yet")).to_be_visible(timeout=2 * MINUTES_MS)
    page.get_by_role("spinbutton", name="Tasks to start").fill("3")
    page.get_by_role("spinbutton", name="Parallel rows").fill("1")
    page.get_by_role("textbox", name="Folder of seed lists").fill(str(folder / "seeds"))
    page.get_by_role("button", name="Estimate").click()
    expect(page.locator(".cs-fig", has_text="Calls").locator(".v")).to_have_text("15 – 33", timeout=MINUTES_MS)
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"/synthesis\?run="), timeout=2 * MINUTES_MS)
    state = page.locator(".cs-fig", has_text="State").locator(".v")
    expect(state).to_have_text("finished", timeout=3 * MINUTES_MS)
    expect(page.locator(".cs-fig", has_text="Ready").locator(".v")).to_have_text("1")
    shot(page, "run")

    page.locator(".cs-table a", has_text="validation_code").click()
    expect(page).to_have_url(re.compile(r"stage=validation_code"))
    page.goto(f"{page.url}&row=r00000")
    expect(page.get_by_text("mutation score 1.00")).to_be_visible()
    expect(page.get_by_text("10 runs, flakiness 0")).to_be_visible()
    page.get_by_text("mutation score 1.00").scroll_into_view_if_needed()
    shot(page, "proof")

    page.goto(page.url.replace("validation_code", "judge").replace("r00000", "r00002"))
    expect(page.locator(".cs-outcome")).to_contain_text("the total is in the question")
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_role("button", name="Undo the decision")).to_be_visible()
    page.get_by_test_id("stBaseButton-primary").filter(has_text="Resume").first.click()
    expect(page.locator(".cs-fig", has_text="Ready").locator(".v")).to_have_text("2", timeout=3 * MINUTES_MS)
    expect(state).to_have_text("finished", timeout=MINUTES_MS)

    page.get_by_text("Pack", exact=True).click()
    expect(page.locator(".cs-fig", has_text="In the pack").locator(".v")).to_have_text("2")
    shot(page, "pack")
    page.get_by_role("button", name="Store the pack").click()
    page.get_by_role("button", name="Open in Tasks").click()
    expect(page).to_have_url(re.compile(r"/tasks\?pack="), timeout=MINUTES_MS)
    assert len(list(Path(studio.data_dir, "packs").glob("*.jsonl"))) == 1
