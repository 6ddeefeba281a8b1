"""Browser test of the Tasks page: the demo pack, search, a task with its files, an edit, the report of a run."""

from __future__ import annotations

import re
from dataclasses import replace

from playwright.sync_api import expect

from core.packs.library import PackLibrary
from core.packs.model import PackFile
from core.rollouts import RunStore
from tests.report.made_run import make_run

SCORES = {"demo_005": [1.0, 0.0, 1.0, None], "demo_006": [0.25], "demo_021": [1.0, 1.0]}


def shown_version(page):
    return re.search("pack=([0-9a-f]{12})", page.url)[1]


def test_tasks_from_import_to_report(studio, watch):
    page = watch(f"{studio.url}/tasks").page
    page.get_by_role("button", name="Load the demo pack").click()
    expect(page.get_by_text("1–44 of 44 tasks")).to_be_visible()
    packs = PackLibrary(studio.data_dir / "packs")
    pack = packs.get(packs.entries()[0].version)
    make_run(RunStore(studio.data_dir / "rollouts"), packs, None, pack, SCORES)

    page.get_by_placeholder("Search id, query, tags, file names").fill("log errors")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1–4 of 4 tasks")).to_be_visible()
    expect(page).to_have_url(re.compile("q=log"))

    page.goto(f"{studio.url}/tasks?task=demo_005&tab=files&file=input_files%2Flogs%2Fapp.log")
    expect(page.get_by_text("ERROR", exact=False).first).to_be_visible()
    page.get_by_role("radio", name="Attempts").click()
    expect(page.get_by_text("By policy version")).to_be_visible()
    expect(page.get_by_text("crashed").first).to_be_visible()
    page.get_by_role("radio", name="Edit").click()
    page.get_by_label("Category").fill("Operations")
    page.get_by_role("button", name="Save as a new version").first.click()
    expect(page).to_have_url(re.compile("pack=[0-9a-f]{12}"))
    assert (
        len(packs.entries()) == 2 and packs.get(packs.entries()[0].version).by_id["demo_005"].category == "Operations"
    )

    # A text field of a browser has neither a byte order mark nor CRLF; the file keeps both, and the tags their comma.
    windows = replace(
        pack.by_id["demo_005"],
        task_id="windows",
        tags=("one, two",),
        input_files={"note.txt": PackFile("\ufeffone\r\ntwo\r\n".encode())},
    )
    entry = packs.keep(pack.replaced([windows]), now=8e9)
    page.goto(f"{studio.url}/tasks?pack={entry.version}&task=windows&tab=edit")
    page.get_by_role("textbox", name="Text", exact=True).fill("one\n2\n")
    page.get_by_role("button", name="Save as a new version").last.click()
    expect(page).not_to_have_url(re.compile(f"pack={entry.version}"))
    second = shown_version(page)
    page.get_by_label("Rubric as text").fill("Is it short?")
    page.get_by_role("button", name="Save as a new version").first.click()
    expect(page).not_to_have_url(re.compile(f"pack={second}"))
    task = packs.get(shown_version(page)).by_id["windows"]
    assert task.input_files["note.txt"].content == "\ufeffone\r\n2\r\n".encode()
    assert (task.rubric, task.tags, task.query) == ("Is it short?", windows.tags, windows.query)

    # Two tasks that differ in one word are a pair.
    twin = replace(pack.by_id["demo_005"], task_id="twin", query=pack.by_id["demo_005"].query + " Thanks.")
    entry = packs.keep(pack.replaced([*pack.tasks, twin]), now=9e9)
    page.goto(f"{studio.url}/tasks?view=lint&pack={entry.version}")
    expect(page.get_by_text("Near-duplicates")).to_be_visible()
    row = page.locator("table.cs-table tr", has_text="twin").filter(has_text="demo_005")
    expect(row).to_contain_text("the same")
    row.get_by_role("link", name="twin").click()
    expect(page).to_have_url(re.compile("task=twin"))

    page.goto(f"{studio.url}/tasks?view=report&run=run-1&price_prompt=1&price_sampled=2")
    expect(page.get_by_text("pass@k and pass^k")).to_be_visible()
    expect(page.get_by_text("differ from the run's scores")).to_be_visible()
    expect(page.get_by_text("1 crashed, 5 skipped")).to_be_visible()
