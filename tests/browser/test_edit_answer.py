"""Browser tests of the correction editor, up to the preview of exported rows, and of what decides in a group."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from core.pool import Pool
from tests.browser.conftest import start_studio
from tests.browser.test_lab_walk import QUIET
from tests.editing.conftest import done, rollout


@pytest.fixture(scope="module")
def desk(tmp_path_factory, browser):
    """A studio of its own with a success and a failure."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "data").mkdir()
    pool = Pool.open(folder / "data" / "pool.duckdb")
    pool.steps.append(
        rollout("good", "A", "It says hello.") + rollout("bad", "A", "I don't know."),
        completions=[*done("good", reward=1.0), *done("bad", reward=0.0)],
    )
    pool.close()
    running = start_studio(folder, env=QUIET)
    yield running
    running.stop()


def figure(page, label):
    return page.locator(".cs-fig", has=page.locator(".l", has_text=label))


def test_an_edited_tool_call_reaches_the_exported_rows_and_is_undone(desk, watch):
    page = watch(f"{desk.url}/inspect?step=bad.0&tab=edit").page
    save = page.get_by_role("button", name="Save edit")
    expect(save).to_be_disabled()
    page.get_by_label("Answer", exact=True).fill("I look <b>again</b>.")
    page.get_by_label("Arguments 1").fill('{"path": "notes.txt"}')
    page.get_by_label("Arguments 1").press("Control+Enter")
    expect(page.locator(".cs-changed ins").first).to_have_text("I look <b>again</b>.\n")
    expect(page.locator(".cs-changed del")).to_have_text("note")
    save.click()
    expect(page.locator(".cs-table").get_by_text("in force")).to_be_visible()
    page.get_by_role("radio", name="Messages").click()
    expect(page.locator(".badge", has_text="edited")).to_be_visible()
    expect(page.get_by_text("its tokens were not sampled")).to_be_visible()

    sft = quote(json.dumps({"algorithm": "sft", "options": {"edits": "only"}}))
    page.goto(f"{desk.url}/batch?recipe={sft}&tab=export&format=trl_sft")
    expect(figure(page, "Steps").locator(".s")).to_have_text("1 edited")
    expect(page.get_by_text("1 answer was edited by people").first).to_be_visible()
    in_loss = page.locator(".row mark")
    call = '{"name": "read", "arguments": {"path": "notes.txt"}}'
    expect(in_loss).to_have_text(f"I look <b>again</b>.\n<tool_call>\n{call}\n</tool_call><|im_end|>")
    dpo = quote(json.dumps({"algorithm": "dpo", "options": {"edits": "only"}}))
    page.goto(f"{desk.url}/batch?recipe={dpo}&tab=export&format=trl_dpo")
    expect(in_loss).to_have_count(2)
    expect(in_loss.last).to_contain_text('{"path": "note.txt"}')
    page.goto(f"{desk.url}/batch?tab=export")
    expect(figure(page, "Steps").locator(".v")).to_have_text("4")
    expect(figure(page, "Steps").locator(".s")).to_have_count(0)

    page.goto(f"{desk.url}/inspect?step=bad.0&tab=edit")
    expect(page.get_by_label("Answer", exact=True)).to_have_value("I look <b>again</b>.")
    page.get_by_role("button", name="Use the captured answer").click()
    expect(page.locator(".cs-table").get_by_text("undone")).to_be_visible()
    # The editor of before stays until the run of the page has ended.
    expect(page.get_by_label("Answer", exact=True)).to_have_count(1)
    expect(page.get_by_label("Answer", exact=True)).to_have_value("")
    page.get_by_role("button", name="Redo").click()
    expect(page.locator(".cs-table").get_by_text("in force")).to_be_visible()


def test_a_wrong_edit_names_what_does_not_fit(desk, watch):
    page = watch(f"{desk.url}/inspect?step=good.0&tab=edit").page
    page.get_by_label("Arguments 1").fill('{"path": ')
    page.get_by_label("Arguments 1").press("Control+Enter")
    callout = page.locator(".cs-callout.bad")
    expect(callout).to_contain_text("JSON object")
    expect(callout).to_contain_text("tool_calls[0].function.arguments")
    page.get_by_label("Arguments 1").fill('{"path": "a"}')
    page.get_by_label("Arguments 1").press("Control+Enter")
    expect(callout).to_have_count(0)
    page.get_by_role("button", name="Add a tool call").click()
    expect(page.get_by_label("Arguments 2")).to_be_visible()
    page.get_by_role("button", name="Remove the last call").click()
    expect(page.get_by_label("Arguments 2")).to_have_count(0)


def test_a_group_shows_its_task_and_what_decides(desk, watch):
    page = watch(f"{desk.url}/inspect?group=A").page
    expect(page.locator(".cs-task")).to_have_text("Task What does notes.txt of A say?")
    deciding = page.locator(".cs-decision.deciding")
    expect(deciding.locator(".h")).to_contain_text("agreement 50.0 % · explains 100 % of the rewards' variance")
    expect(deciding.locator(".h")).to_contain_text('After read({"path":"note.txt"})')
    expect(deciding.locator(".w a")).to_have_text(["“It says hello.”", "“I don't know.”"])
    expect(page.locator(".line button.name")).to_have_text(["good", "bad"])
    deciding.locator(".w a").last.click()
    expect(page).to_have_url(re.compile(r"inspect\?.*step=bad\.1"))
    expect(page.locator("article.sampled")).to_contain_text("I don't know.")
