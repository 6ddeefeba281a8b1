"""The Synthesis page from a run on disk: figures, rows of every stage, the proof, decisions, prompts, the pack."""

from __future__ import annotations

import re

import pytest

from core.packs import Pack
from core.service import Service
from core.synthesis import SynthesisRun, pack_of
from tests.report.made_run import make_run as make_rollouts
from tests.synthesis.made_run import make_run

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def made(service: Service) -> SynthesisRun:
    """A run of six tasks, two of which are ready; texts of models have HTML."""
    return make_run(service.synthesis.store, note=NASTY)


def figures_of(page):
    return dict(re.findall(r'<div class="l">(.*?)</div><div class="v">(.*?)</div>', page.html))


def button(page, label):
    return next(one for one in page.app.button if one.label == label)


def save(page, label, text):
    next(one for one in page.app.text_area if one.label == label).set_value(text)
    button(page, "Save").click().run()


def test_without_a_run_the_page_has_the_form(service, open_page):
    page = open_page("synthesis")
    assert page.failures == []
    assert "No run yet" in page.html
    assert [one.label for one in page.app.text_input] == [
        "Folder of seed lists",
        "Task-writing model",
        "Judge",
        "Solution model",
        "Embedding model",
    ]


def test_a_run_with_its_stages(made, open_page):
    page = open_page("synthesis")
    assert page.failures == []
    figures = figures_of(page)
    assert (figures["State"], figures["Ready"], figures["Rows failed"], figures["Calls"]) == ("finished", "2", "4", "1")
    assert NASTY not in page.html
    assert page.html.count('href="/synthesis?run=made') == 6
    (table,) = page.app.dataframe
    assert list(table.value["Row"]) == [f"r{n:05d}" for n in range(6)]


@pytest.mark.parametrize(
    ("stage", "row", "shown"),
    [
        ("tasks", "r00000", "BAKERY"),
        ("tasks", "r00001", "malformed: the answer has no JSON object"),
        ("dedup", "r00002", "near-duplicate of r00000: cosine 0.950"),
        ("judge", "r00003", "answer leak"),
        ("validation_code", "r00004", "the untouched workspace scores 1.0"),
        ("rubrics", "r00005", "code is enough"),
    ],
)
def test_a_row_of_every_stage(made, open_page, stage, row, shown):
    page = open_page("synthesis", run="made", stage=stage, row=row)
    assert page.failures == []
    assert NASTY not in page.html
    texts = [page.html, *(one.value for one in page.app.code), *(one.value for one in page.app.caption)]
    assert any(shown in one for one in texts)


def test_the_proof_of_a_checker(made, open_page):
    page = open_page("synthesis", run="made", stage="validation_code", row="r00000")
    assert page.failures == []
    assert page.html.count("</i>holds") == 8
    for text in ("score 0", "score 1", "10 runs, flakiness 0", "1 of 2 below, mutation score 0.50", "42 → 43"):
        assert text in page.html
    failed = open_page("synthesis", run="made", stage="validation_code", row="r00004")
    assert (failed.html.count("</i>holds"), failed.html.count("</i>fails"), failed.html.count("</i>not run")) == (
        3,
        1,
        4,
    )
    (least,) = [one for one in page.app.number_input if one.label == "Min mutation score"]
    least.set_value(0.75).run()
    assert len(page.app.dataframe[0].value) == 0


def test_rows_are_decided_and_edited(made, open_page):
    page = open_page("synthesis", run="made", stage="judge", row="r00003")
    button(page, "Accept").click().run()
    assert made.state().passes("judge", "r00003")
    assert "Undo the decision" in [one.label for one in page.app.button]
    button(page, "Run again").click().run()
    assert made.state().current("judge", "r00003") is None
    page = open_page("synthesis", run="made", stage="tasks", row="r00000")
    save(page, "Product, a JSON object", "{")
    assert "the product is not JSON" in page.html
    save(page, "Product, a JSON object", '{"question": "Another."}')
    row = made.state().rows["tasks", "r00000"]
    assert (row.edited, row.product) == (True, {"question": "Another."})


def test_prompts_are_edited(made, open_page):
    page = open_page("synthesis", run="made", view="prompts", prompt="task")
    assert page.failures == []
    save(page, "Text", "About {{nothing}}")
    assert "unknown place {{nothing}}" in page.html
    save(page, "Text", "In Danish: {{category}}")
    assert made.templates()["task"].text == "In Danish: {{category}}"
    assert "+In Danish" in "".join(one.value for one in page.app.code)
    button(page, "Restore the shipped text").click().run()
    assert "In Danish" not in made.templates()["task"].text


def test_the_pack_is_filtered_and_stored(service, made, open_page):
    pack = Pack("made", pack_of(made).tasks)
    scores = {"made-r00000": [1.0, 0.0], "made-r00005": [0.0, 0.0]}
    make_rollouts(service.rollouts.runs, service.rollouts.packs, None, pack, scores, n=2)
    page = open_page("synthesis", run="made", view="pack")
    assert page.failures == []
    (table,) = page.app.dataframe
    assert list(table.value["Solve rate"]) == [0.5, 0.0]
    assert list(table.value["In the pack"]) == [True, True]
    page.app.toggle(key="pack-band").set_value(True).run()
    assert list(page.app.dataframe[0].value["In the pack"]) == [True, False]
    button(page, "Store the pack").click().run()
    (entry,) = [one for one in service.rollouts.packs.entries() if one.n_tasks == 1]
    assert [one.task_id for one in service.rollouts.packs.get(entry.version).tasks] == ["made-r00000"]
    assert page.failures == []


def test_a_run_that_does_not_exist(made, open_page):
    page = open_page("synthesis", run="second")
    assert "There is no run second" in page.html
