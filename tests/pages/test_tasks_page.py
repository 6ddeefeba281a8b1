"""Tests of the Tasks page: what it lists, shows, changes and reports; a large pack is fast."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from core.packs import Pack, read_pack
from tests.report.made_run import make_run

DEMO = Path(__file__).parents[2] / "demo_data" / "pack"
SCORES = {"demo_001": [1.0, 0.0, 1.0, None], "demo_021": [0.25]}


@pytest.fixture
def pack(service) -> Pack:
    made = Pack("demo", read_pack(DEMO).tasks)
    make_run(service.rollouts.runs, service.rollouts.packs, service.pool, made, SCORES)
    make_run(
        service.rollouts.runs,
        service.rollouts.packs,
        service.pool,
        made,
        {"demo_001": [1.0]},
        run="run-2",
        version=4,
        n=1,
    )
    return made


def button(page, label: str):
    return next(one for one in page.app.button if one.label == label)


def texts(page) -> str:
    shown = [element.value for kind in ("caption", "code", "markdown") for element in page.app.get(kind)]
    return page.html + "\n".join(map(str, shown))


def test_an_empty_studio_offers_an_import(service, open_page):
    page = open_page("tasks")
    assert page.failures == [] and "No task pack yet" in page.html
    button(page, "Load the demo pack").click().run()
    assert page.failures == []
    (entry,) = service.rollouts.packs.entries()
    assert (entry.name, entry.n_tasks) == ("demo", 44)
    next(one for one in page.app.text_input if one.label == "Folder or file of tasks").set_value("no/path")
    button(page, "Import").click().run()
    assert "no/path is not an absolute path" in page.html


def test_search_and_facets_narrow_the_list(service, pack, open_page):
    page = open_page("tasks", q="log", split="val")
    assert page.failures == []
    frame = page.app.dataframe[0].value
    assert list(frame["task_id"]) == ["demo_008"]
    assert set(frame.columns) >= {"query", "attempts", "mean"}
    page = open_page("tasks", order="mean desc")
    frame = page.app.dataframe[0].value
    assert list(frame["task_id"])[:2] == ["demo_001", "demo_021"] and frame["mean"][0] == pytest.approx(0.75)
    assert frame["attempts"][0] == 5 and "1–44 of 44 tasks" in texts(page)


@pytest.mark.parametrize(
    ("tab", "wanted"),
    [
        ("query", "I organise the"),
        ("files", "input/answers.csv"),
        ("check", "def grade(transcript, workspace_path)"),
        ("rubric", "tone of the invitation"),
        ("attempts", "run-1:demo_001"),
        ("edit", "Saving creates a new version"),
    ],
)
def test_a_task_s_tabs(service, pack, open_page, tab, wanted):
    file = {"file": "checker_files/check.py"} if tab == "check" else {}
    page = open_page("tasks", task="demo_001", tab=tab, **file)
    assert page.failures == []
    shown = texts(page) + "".join(str(one.options) for one in page.app.selectbox)
    assert wanted in shown
    assert "4 with a score" in page.html, "five attempts in two runs, one without a score"
    if tab == "attempts":
        assert "By policy version" in page.html and "crashed" in page.html and "/inspect?trajectory=" in page.html


def test_an_edit_is_a_new_version_and_a_wrong_one_is_named(service, pack, open_page):
    page = open_page("tasks", task="demo_001", tab="edit")
    next(one for one in page.app.text_area if one.label == "Query").set_value("Other words.")
    next(one for one in page.app.button if one.label == "Save as a new version").click().run()
    assert page.failures == []
    newest = service.rollouts.packs.get(service.rollouts.packs.entries()[0].version)
    assert newest.by_id["demo_001"].query == "Other words." and newest.version != pack.version
    page = open_page("tasks", task="demo_001", tab="edit")
    next(one for one in page.app.text_input if one.label.startswith("Expected")).set_value("{")
    next(one for one in page.app.button if one.label == "Save as a new version").click().run()
    assert "answer is not JSON" in page.html


def test_the_split_of_what_matches(service, pack, open_page):
    page = open_page("tasks", q="log", pack=pack.version)
    button(page, "Validation").click().run()
    assert page.failures == []
    newest = service.rollouts.packs.get(service.rollouts.packs.entries()[0].version)
    moved = {task.task_id for task in newest.tasks if task.split != pack.by_id[task.task_id].split}
    assert moved and all(newest.by_id[one].split == "val" for one in moved)


def test_the_report_of_a_run_and_of_two(service, pack, open_page):
    page = open_page("tasks", view="report", run="run-1")
    assert page.failures == []
    assert "1 crashed, 3 skipped" in page.html and "pass@k and pass^k" in page.html and "5 of 8" not in page.html
    page = open_page("tasks", view="report", run="run-1", **{"with": "run-2"})
    assert page.failures == []
    assert "second minus first" in page.html and "1 and 0" in texts(page)


def test_thousands_of_tasks_are_listed_fast(service, open_page):
    demo = read_pack(DEMO).tasks
    tasks = [replace(task, task_id=f"{task.task_id}-{i}") for i in range(50) for task in demo]
    service.rollouts.packs.keep(Pack("large", tasks), now=1.0)
    page = open_page("tasks", q="invoice")
    start = time.process_time()
    page.app.run()
    assert page.failures == [] and time.process_time() - start < 2.0
    assert "of 400 tasks" in texts(page)
