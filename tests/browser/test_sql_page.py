"""The SQL page in Chromium: the editor completes and highlights, names are inserted, earlier queries come back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.walk import idle

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def sql(demo, watch) -> Page:
    """The SQL page, with the editor loaded."""
    page = watch(f"{demo[0].url}/sql").page
    page.get_by_role("textbox", name="Query").wait_for()
    idle(page)
    return page


def rows(page: Page, n: int) -> None:
    """Wait for a result of so many rows."""
    expect(page.get_by_text(re.compile(rf"^{n} rows? in ")).first).to_be_visible()
    idle(page)


def test_names_are_completed_and_keywords_marked(sql):
    box = sql.get_by_role("textbox", name="Query")
    box.fill("SELECT count(*) AS n FROM tra")
    options = sql.locator(".cm-tooltip-autocomplete li")
    box.press("End")
    box.press("Control+Space")
    expect(options.first).to_contain_text("trajectories")
    # The editor takes no Enter within 75 ms of a change of its list.
    sql.wait_for_timeout(200)
    box.press("Enter")
    expect(box).to_have_text("SELECT count(*) AS n FROM trajectories")
    expect(sql.locator(".tok-keyword").first).to_have_text("SELECT")
    box.press_sequentially(" WHERE difficult")
    option = options.filter(has_text="difficulty").first
    expect(option).to_be_visible()
    expect(sql.locator(".cm-completionInfo")).to_contain_text("success rate")
    option.click()
    expect(box).to_contain_text("WHERE difficulty")
    box.press_sequentially(" IS NULL OR TRUE")
    box.press("Control+Enter")
    rows(sql, 1)


def test_a_column_is_inserted_and_an_earlier_query_comes_back(sql):
    box = sql.get_by_role("textbox", name="Query")
    box.fill("SELECT  FROM steps LIMIT 3")
    box.press("Home")
    for _ in range(len("SELECT ")):
        box.press("ArrowRight")
    sql.get_by_role("searchbox", name=re.compile("^Find")).fill("step_uid")
    sql.locator("button.item[data-name=step_uid]").first.click()
    expect(box).to_have_text("SELECT step_uid FROM steps LIMIT 3")
    sql.keyboard.press("Control+Enter")
    rows(sql, 3)
    box.fill("SELECT 1 AS one")
    sql.get_by_role("button", name="Run").click()
    rows(sql, 1)
    sql.get_by_role("searchbox", name=re.compile("^Find")).fill("")
    sql.get_by_role("button", name="History").click()
    earlier = sql.locator("button.past").filter(has_text="SELECT step_uid FROM steps LIMIT 3")
    expect(earlier).to_contain_text("3 rows in")
    earlier.click()
    expect(box).to_have_text("SELECT step_uid FROM steps LIMIT 3")
    expect(sql).to_have_url(re.compile("q=SELECT\\+1"))
