"""Browser test of the Rollouts page: a run from the form to the changed files of an attempt, then cancel and resume."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from core.rollouts import Run, RunStore
from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path
from tests.rollouts.demo_pack import write_pack

from .conftest import start_studio

MINUTES_MS = 60_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Any:
    """A studio with the demo's scripted engine, and a pack of two tasks."""
    folder = tmp_path_factory.mktemp("rollouts")
    script = json.loads(demo_script_path().read_text())
    for rule in script["rules"]:
        rule["delay_s"] = 0
    (folder / "script.json").write_text(json.dumps(script))
    pack = write_pack(folder / "two-tasks", 2)
    with EngineProcess.start("scripted", args=["--script", folder / "script.json"]) as engine:
        engine.wait_ready()
        running = start_studio(folder / "studio", env={"CLAW_STUDIO_ENGINE": str(engine.base_url)})
        yield running, pack
        running.stop()


@pytest.mark.timeout(1500)
def test_a_run_from_the_form_to_a_changed_file(place: Any, watch: Any) -> None:
    studio, pack = place
    page = watch(f"{studio.url}/rollouts").page
    expect(page.get_by_text("No rollouts yet")).to_be_visible(timeout=2 * MINUTES_MS)
    page.get_by_role("textbox", name="Path of the pack").fill(str(pack / "nothing"))
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("does not exist")).to_be_visible(timeout=2 * MINUTES_MS)

    page.get_by_role("textbox", name="Path of the pack").fill(str(pack))
    page.get_by_role("spinbutton", name="Attempts per task").fill("2")
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"/rollouts\?run="), timeout=3 * MINUTES_MS)
    expect(page.locator(".cs-fig", has_text="Ended").locator(".v")).to_have_text("4 of 4", timeout=10 * MINUTES_MS)
    expect(page.locator(".cs-fig", has_text="State").locator(".v")).to_have_text("finished", timeout=MINUTES_MS)
    tiles = page.locator(".cs-tiles .row a.good, .cs-tiles .row a.bad")
    expect(tiles).to_have_count(4)

    page.locator(".cs-tiles .row a.good").first.click()
    expect(page).to_have_url(re.compile(r"attempt=0\.0\."), timeout=MINUTES_MS)
    expect(page.get_by_text("Isolation", exact=True)).to_be_visible(timeout=MINUTES_MS)
    expect(page.get_by_text(re.compile("^[+-]")).first).to_be_visible()
    page.get_by_role("tab", name="Output of the agent").click()
    expect(page.get_by_text('"outcome": "finished"')).to_be_visible()
    page.get_by_role("button", name="Open the trajectory").click()
    expect(page).to_have_url(re.compile(r"/inspect\?trajectory="), timeout=MINUTES_MS)
    runs = sorted(Path(studio.data_dir, "rollouts").iterdir())
    assert len(runs) == 1
    score_again(page, studio, RunStore(Path(studio.data_dir, "rollouts")).get(runs[0].name))
    cancel_and_resume(page, studio)


def cancel_and_resume(page: Any, studio: Any) -> None:
    """A run whose agent never ends: cancelled, its attempts are lost; resumed, they are made again."""
    page.goto(f"{studio.url}/rollouts")
    page.get_by_text("New run").click()
    page.get_by_role("combobox", name="Agent").click()
    page.get_by_role("option", name="a command line").click()
    page.get_by_role("textbox", name="Command line").fill("sh -c 'sleep 3600 {prompt}")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("the command line can't be read: No closing quotation")).to_be_visible(timeout=MINUTES_MS)
    page.get_by_role("textbox", name="Command line").fill("sh -c 'sleep 3600' {prompt}")
    page.get_by_role("spinbutton", name="Attempts per task").fill("1")
    page.get_by_role("button", name="Start").click()
    figure = page.locator(".cs-fig")
    running, state = (
        figure.filter(has_text=re.compile("Running")).locator(".v"),
        figure.filter(has_text=re.compile("State")).locator(".v"),
    )
    expect(running).to_have_text("2", timeout=3 * MINUTES_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(state).to_have_text("stopped", timeout=2 * MINUTES_MS)
    expect(figure.filter(has_text="Lost").locator(".v")).to_have_text("2")
    expect(figure.filter(has_text="Ended").locator(".v")).to_have_text("0 of 2")
    page.get_by_role("button", name="Resume: 2 attempts left").click()
    expect(state).to_have_text("running", timeout=2 * MINUTES_MS)
    expect(running).to_have_text("2", timeout=2 * MINUTES_MS)
    expect(figure.filter(has_text="Lost")).to_contain_text("2 retries")
    page.get_by_role("button", name="Cancel").click()
    expect(state).to_have_text("stopped", timeout=2 * MINUTES_MS)


def score_again(page: Any, studio: Any, run: Run) -> None:
    """Datasets, Re-score: a check that gives every attempt 0; compare, who crosses, adopt, the report, discard."""
    n_solved = sum(one.outcome == "solved" for one in run.attempts())
    assert n_solved > 0
    page.goto(f"{studio.url}/datasets?tab=rescore")
    expect(page.get_by_text("No re-scoring yet")).to_be_visible(timeout=2 * MINUTES_MS)
    page.get_by_role("textbox", name="Name").fill("strict")
    page.get_by_role("combobox", name="Verifier").click()
    page.get_by_role("option", name="one check for all").click()
    check = {"verifier": "file_contains", "path": "nothing.txt", "contains": ["x"]}
    page.get_by_role("textbox", name="Check as JSON").fill(json.dumps(check))
    page.get_by_role("button", name="Score again").click()
    figure = page.locator(".cs-fig")
    expect(figure.filter(has_text="State").locator(".v")).to_have_text("done", timeout=5 * MINUTES_MS)
    expect(figure.filter(has_text="Scores").locator(".v")).to_have_text("4")
    expect(figure.filter(has_text="Crossed 0.5").locator(".v")).to_have_text(f"+0 −{n_solved}")
    expect(page.get_by_role("cell", name="yes", exact=True)).to_have_count(n_solved)

    page.get_by_role("button", name="Adopt").click()
    policy = "rescore-strict.?@1"  # a character without width keeps it from being a link to an address
    expect(page.get_by_text(re.compile(policy))).to_be_visible(timeout=2 * MINUTES_MS)
    expect(figure.filter(has_text="State").locator(".v")).to_have_text("adopted")
    page.goto(f"{studio.url}/tasks?view=report&pack={run.settings.pack_version}&run={run.settings.run}")
    text = f"{n_solved} of 4 differ from the run's scores"
    expect(page.get_by_text(re.compile(f"policy {policy} in channel .*; {text}"))).to_be_visible(timeout=2 * MINUTES_MS)
    expect(figure.filter(has_text="Mean score").locator(".v")).to_have_text("0.000")
    page.get_by_role("radio", name="Scores of the run").click()
    expect(page.get_by_text("Rewards: as the run gave them.")).to_be_visible(timeout=MINUTES_MS)
    expect(figure.filter(has_text="Mean score").locator(".v")).not_to_have_text("0.000")

    page.goto(f"{studio.url}/datasets?tab=rescore&rescore=strict")
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_text("No re-scoring yet")).to_be_visible(timeout=2 * MINUTES_MS)
