"""What a new user tries in the first hour, on the demo data and on odd data: each page does what it shows.

One studio for all; the references are the API's answers and what Chromium lays out.
"""

from __future__ import annotations

import json
import re
import statistics
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Page, expect

from core.backup import restore
from core.client import StudioClient
from core.serving.tokenizer import load_tokenizer
from tests.browser.conftest import settled_box
from tests.browser.odd_data import SPELLED
from tests.browser.walk import HEAD, ROW, idle
from tests.conftest import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def visit(demo, watch):
    """Open an address of the studio and wait until it is drawn."""

    def opened(path: str) -> Page:
        page = watch(f"{demo[0].url}/{path}").page
        idle(page)
        return page

    return opened


def table(page: Page):
    """The first table of the page."""
    return page.get_by_test_id("stDataFrame").first


def figure(page: Page, label: str):
    """The value of a figure."""
    return page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile(f"^{label}$"))).first.locator(".v")


def n_rows(page: Page, noun: str):
    """The line below a table."""
    return page.get_by_text(re.compile(rf"^[\d,]+–[\d,]+ of [\d,]+ {noun}$"))


def test_every_query_runs(visit):
    page = visit("sql")
    box = page.get_by_role("textbox", name="Query")
    for n in range(1, 5):
        box.fill(f"SELECT {n} AS answer, 'row' AS kind FROM range({n})")
        page.get_by_role("button", name=re.compile("^Run")).first.click()
        expect(page.get_by_text(re.compile(rf"^{n} rows? in ")).first).to_be_visible()
        idle(page)
        expect(box).to_have_text(f"SELECT {n} AS answer, 'row' AS kind FROM range({n})")
    page.go_back()
    expect(box).to_have_text("SELECT 3 AS answer, 'row' AS kind FROM range(3)")


def test_the_example_of_the_where_box_finds_trajectories(demo, visit):
    page = visit("inspect")
    box = page.get_by_role("textbox", name="WHERE")
    example = str(box.get_attribute("placeholder")).removeprefix("WHERE ")
    assert example == "reward < 0.5"
    box.fill(example)
    box.press("Enter")
    expect(page).to_have_url(re.compile("where=trajectory_reward"))
    steps = demo[1].call("GET", "/api/v1/steps?where=trajectory_reward<0.5&limit=1000")["steps"]
    n = len({step["trajectory_uid"] for step in steps})
    expect(page.get_by_text(f"1–{n} of {n} trajectories")).to_be_visible()
    expect(page.get_by_text("Write step_reward for a step's")).to_be_visible()


def test_a_link_with_a_steps_name_says_whose_it_is(visit):
    page = visit("inspect?where=reward%3C0.5")
    page.get_by_role("button", name="Use the trajectory's").click()
    expect(page).to_have_url(re.compile("where=trajectory_reward"))
    expect(n_rows(page, "trajectories")).to_be_visible()


@pytest.mark.parametrize("wrong", ["reward <", "agent > 5", "nothing = 1"])
def test_a_wrong_condition_keeps_the_table_and_shows_no_sql(demo, browser, wrong):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{demo[0].url}/inspect?where=trajectory_reward%3C0.5")
    expect(n_rows(page, "trajectories")).to_be_visible()
    shown = n_rows(page, "trajectories").inner_text()
    box = page.get_by_role("textbox", name="WHERE")
    box.fill(wrong)
    box.press("Enter")
    error = page.locator(".cs-callout.bad")
    expect(error).to_be_visible()
    assert not re.search(r"SELECT|step_state|s\.agent|LINE 1", error.inner_text())
    expect(n_rows(page, "trajectories")).to_have_text(shown)
    expect(box).to_have_value(wrong)
    page.close()


def test_a_heading_sorts_the_whole_result(demo, visit):
    page = visit("inspect?level=steps")
    place = settled_box(table(page))
    # The heading of "Prompt", beyond what fits on the first page of 50 rows.
    headings = {"Trajectory": 46 + 80}
    page.mouse.click(place["x"] + headings["Trajectory"], place["y"] + HEAD / 2)
    expect(page).to_have_url(re.compile("order=trajectory_uid"))
    assert "trajectory=" not in page.url
    idle(page)
    place = settled_box(table(page))
    page.mouse.click(place["x"] + 80, place["y"] + HEAD + ROW / 2)
    expect(page).to_have_url(re.compile("trajectory=odd-2"))
    steps = demo[1].call("GET", "/api/v1/steps?order=trajectory_uid+desc&limit=1")["steps"]
    assert steps[0]["trajectory_uid"] == "odd-2"


def test_the_way_back_leads_to_the_same_page(visit):
    page = visit("inspect?page=2")
    shown = n_rows(page, "trajectories").inner_text()
    assert shown.startswith("51–")
    place = settled_box(table(page))
    page.mouse.click(place["x"] + 80, place["y"] + HEAD + ROW / 2)
    page.get_by_role("radio", name="Tokens").click()
    expect(page).to_have_url(re.compile("tab=tokens"))
    page.get_by_role("button", name="All trajectories").click()
    expect(n_rows(page, "trajectories")).to_have_text(shown)


def test_an_export_for_sft_names_the_failures_in_a_plan_for_rl(demo, visit):
    rewards = {
        step["trajectory_uid"]: demo[1].call("GET", f"/api/v1/trajectories/{step['trajectory_uid']}")["reward"]
        for step in demo[1].call("GET", "/api/v1/steps?where=channel='train'+and+step_index=0&limit=1000")["steps"]
    }
    failed = sum(reward < 0.5 for reward in rewards.values())
    page = visit("batch?tab=export&format=trl_sft")
    expect(page.get_by_text(f"{failed} have a reward below 0.5")).to_be_visible()
    page = visit("batch?tab=export&format=trl_sft&recipe=" + quote('{"algorithm":"sft"}'))
    expect(figure(page, "Trajectories")).to_have_text(str(len(rewards) - failed))
    expect(page.get_by_text("have a reward below")).to_have_count(0)
    page.get_by_text("SFT (rejection sampling) options").click()
    expect(page.get_by_role("spinbutton", name="min_reward")).to_have_value("0.5")


def test_ready_means_the_same_on_overview_and_inspect(demo, visit):
    page = visit("")
    page.locator(".js-plotly-plot .annotation-text").nth(5).wait_for()
    chart = page.locator(".js-plotly-plot").first
    # Paired by where they stand: plotly writes the labels of a reversed axis from the bottom.
    labels, counts = (
        [one.text_content() for one in sorted(chart.locator(name).all(), key=lambda one: one.bounding_box()["y"])]
        for name in (".ytick text", ".annotation-text")
    )
    funnel = {label: count.split()[0] for label, count in zip(labels, counts, strict=True)}
    recipe = {"algorithm": "grpo"}
    plan = demo[1].call("POST", "/api/v1/plans", {"recipe": recipe})
    ready = demo[1].call("POST", "/api/v1/plans", {"view": {"filters": {"ready": True}}, "recipe": recipe})
    assert funnel["In the plan"] == str(plan["totals"]["n_steps"]) == str(ready["totals"]["n_steps"])
    page = visit("inspect?level=steps&ready=true")
    assert n_rows(page, "steps").inner_text().split(" of ")[1] == f"{funnel['Ready']} steps"


def test_the_first_selected_row_does_not_move_the_table(visit):
    page = visit("curate")
    before = settled_box(table(page))
    for n in range(2):
        page.mouse.click(before["x"] + 15, before["y"] + HEAD + ROW * n + ROW / 2)
        expect(page.get_by_text(f"Selected: {n + 1}")).to_be_visible()
        idle(page)
    assert settled_box(table(page))["y"] == before["y"]
    page.goto(
        page.url.split("?")[0] + "?agent=a&model=b&channel=train&source=x&status=ok&call_kind=main&engine=e&tags=t"
    )
    idle(page)
    chips = settled_box(page.locator("[class*=curate-chips]").first)
    assert chips["height"] < 60, "one line"


def test_one_key_for_a_browser_until_a_new_one_is_asked_for(demo, watch):
    def keys() -> int:
        return demo[1].call("GET", "/api/v1/sessions")["n_sessions"]

    def shown(page: Page) -> str:
        code = page.get_by_test_id("stCode").first
        expect(code).to_contain_text("cs-")
        return re.search(r"cs-[\w-]{43}", code.inner_text()).group()

    page = watch(f"{demo[0].url}/?connect=curl").page
    key, before = shown(page), keys()
    page.reload()
    idle(page)
    assert shown(page) == key
    tab = page.context.new_page()
    tab.goto(f"{demo[0].url}/?connect=curl")
    assert shown(tab) == key and keys() == before
    page.get_by_role("button", name="New key").click()
    eventually(lambda: shown(page) != key)
    assert keys() == before + 1


def test_a_missing_field_is_named_once_with_how_to_give_it(visit):
    page = visit("batch?recipe=" + quote('{"algorithm":"gigpo"}'))
    expect(page.get_by_text("metadata.anchor").first).to_be_visible()
    expect(page.get_by_text("set the option anchor to observation").first).to_be_visible()
    assert page.get_by_text(re.compile("lacks metadata.anchor")).count() == 0
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight") < 2000
    page.get_by_role("combobox", name="Algorithm").click()
    expect(page.get_by_role("option", name=re.compile("GIGPO · needs metadata.anchor", re.I))).to_be_visible()
    expect(page.get_by_role("option", name="GRPO", exact=True)).to_be_visible()


def test_trainer_metrics_have_a_line_per_run_and_a_sync_needs_no_start(demo, visit):
    client = demo[1]
    for version in (1, 2):
        client.policy(version, "sync_finished")
    for consumer, updates in (("trainer-a", (0, 1, 0, 1)), ("trainer-b", (5,))):
        for update in updates:
            recipe = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 1, "max_uses": None}
            batch = client.call("POST", "/api/v1/batches/fetch", {"consumer": consumer, "recipe": recipe})
            body = {"consumer": consumer, "update": update, "metrics": {"loss": 1.0 / (update + 1)}}
            client.call("POST", f"/api/v1/batches/{batch['batch_uid']}/ack", body)
    page = visit("consume?tab=metrics")
    expect(page.locator(".cs-figs").first).to_contain_text("last sync finished")
    plot = page.locator(".js-plotly-plot", has=page.locator(".legendtext", has_text="trainer-b"))
    expect(plot.locator(".legendtext")).to_have_text(["trainer-a", "trainer-a, run 2", "trainer-b"])
    expect(plot.locator(".scatterlayer .trace")).to_have_count(3)
    page = visit("consume?tab=syncs")
    expect(page.locator("table.cs-table", has_text="Took").locator("tbody tr")).to_have_count(2)


def test_a_version_is_compared_with_the_one_it_follows_page_by_page(demo, visit):
    client = demo[1]
    first = {"view": {"filters": {"channel": "train"}, "where": "prompt_uid = 'demo-fix-typos'"}}
    client.call("POST", "/api/v1/datasets", {"name": "first", **first})
    client.call("POST", "/api/v1/datasets", {"name": "unrelated", "view": {"filters": {"channel": "train"}}})
    body = {"name": "second", "parent": "first", "view": {"filters": {"channel": "train"}}}
    client.call("POST", "/api/v1/datasets", body)
    page = visit("datasets?tab=diff")
    for name, version in (("From", "first"), ("To", "second")):
        expect(page.get_by_role("combobox", name=name, exact=True)).to_have_value(version)
    counts = client.call("GET", "/api/v1/datasets/first/diff?to=second")["counts"]
    expect(figure(page, "Added")).to_have_text(f"{counts['added']:,}")
    expect(page.locator("table.cs-table tbody tr").first).to_contain_text("added")
    expect(page.get_by_text(f"1–100 of {counts['added']} steps")).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text(f"101–200 of {counts['added']} steps")).to_be_visible()
    page.locator("table.cs-table tbody a").first.click()
    expect(page).to_have_url(re.compile(r"/inspect\?step="))


def test_a_text_search_opens_the_step_that_has_it(visit):
    page = visit("inspect?text=needle")
    place = settled_box(table(page))
    page.mouse.click(place["x"] + 80, place["y"] + HEAD + ROW / 2)
    expect(page).to_have_url(re.compile("trajectory=odd-1&step=odd-1%3A2"))
    expect(page.locator("article.sampled")).to_contain_text("answer 2 needle")


def test_hidden_characters_are_named_and_many_tools_fold(visit):
    page = visit("inspect?step=odd-1%3A0")
    expect(page.locator(".unseen")).to_have_text(["RLO", "PDF", "ZWSP"])
    expander = page.get_by_text(re.compile("^60 tools offered: "))
    expect(expander).to_have_text(re.compile(r"tool\\?_5 and 54 more$"))


def test_characters_stand_above_the_tokens_that_spell_them(visit):
    page = visit("inspect?step=odd-2%3A0&tab=tokens")
    over = page.locator(".spelled .over")
    expect(over.first).to_be_visible()
    spelled = over.all_inner_texts()
    tokenizer = load_tokenizer()
    ids = tokenizer.encode(SPELLED)
    alone = "".join(raw.decode() for raw in (tokenizer.token_bytes[i] for i in ids) if raw.isascii())
    assert "".join(spelled) == "".join(character for character in SPELLED if character not in alone)
    assert "\\x" not in page.locator(".scroll").inner_text()
    for box, text in zip(page.locator(".spelled").all(), spelled, strict=True):
        assert box.locator(".t").count() == len(tokenizer.encode(text))
    page.get_by_role("searchbox").fill("世界")
    expect(page.locator(".found")).to_have_text("1 / 1")


def test_numbers_of_a_group_are_those_of_its_advantages(demo, visit):
    group = demo[1].call("GET", "/api/v1/groups/demo-fix-typos")
    rewards = [one["reward"] for one in group["trajectories"]]
    page = visit("inspect?group=demo-fix-typos")
    spread = page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile("^Reward$"))).first.locator(".s")
    expect(spread).to_have_text(f"± {statistics.stdev(rewards):.3f}".rstrip("0"))
    first, second = (one["trajectory_uid"] for one in group["trajectories"][:2])
    page = visit(f"inspect?compare={first}&compare={second}&place=2")
    expect(page.get_by_text(re.compile(r"^Step 2 · position 3 of \d+$"))).to_be_visible()
    expect(page.locator(".cell.on b").first).to_have_text("2")


def test_facets_count_what_the_table_lists(demo, visit):
    steps = demo[1].call("GET", "/api/v1/steps?where=agent='demo-agent'&limit=1000")["steps"]
    page = visit("inspect")
    value = page.locator("button.value[data-facet=agent][data-value=demo-agent] .n")
    expect(value).to_have_text(str(len({step["trajectory_uid"] for step in steps})))
    page = visit("inspect?level=steps")
    own = page.locator("button.value[data-facet=agent][data-value=demo-agent] .n")
    expect(own).to_have_text(str(len(steps)))


def test_tabs_are_named_after_what_they_show(visit):
    titles = {
        "": "Overview · Claw Studio",
        "inspect": "Inspect · Claw Studio",
        "inspect?trajectory=odd-1": "odd-1 · Inspect · Claw Studio",
        "sql": "SQL · Claw Studio",
    }
    for path, title in titles.items():
        expect(visit(path)).to_have_title(title)


def test_the_rows_of_an_export_are_seen_before_it_is_written(demo, visit):
    recipe = {"algorithm": "dpo"}
    plan = demo[1].call("POST", "/api/v1/plans", {"recipe": recipe})
    page = visit("batch?tab=export&format=trl_dpo&recipe=" + quote(json.dumps(recipe)))
    rows = page.locator("article.row")
    expect(rows.first.locator(".side")).to_have_text(["chosen", "rejected"])
    pair, tokenizer = plan["pairs"][0], load_tokenizer()
    for side in ("chosen", "rejected"):
        marked = rows.first.locator("section", has=page.locator(f".side.{side}")).locator("mark").all_text_contents()
        steps = demo[1].call("GET", f"/api/v1/trajectories/{pair[side + '_uid']}")["steps"]
        sampled = [demo[1].call("GET", f"/api/v1/steps/{quote(step['step_uid'])}")["response_ids"] for step in steps]
        assert marked == [tokenizer.decode(ids, skip_special=False) for ids in sampled]
    page = visit("batch?tab=export&format=openai_messages&recipe=" + quote('{"algorithm":"sft"}'))
    expect(page.locator("article.card.sampled .badge").first).to_have_text("in the loss")
    expect(page.get_by_text(re.compile(r"^1–4 of \d+ rows$"))).to_be_visible()


def test_a_transcript_has_all_turns_and_finds_text(visit):
    page = visit("inspect?trajectory=odd-1&tab=transcript")
    expect(page.locator(".turnhead b")).to_have_text([f"Step {n}" for n in range(4)])
    search = page.get_by_role("searchbox", name="Find in the transcript")
    search.fill("NEEDLE")
    expect(page.locator("mark.hit.current")).to_have_text("needle")
    expect(page.locator(".found")).to_have_text("1 of 1, step 2")
    answers = page.locator("article.sampled .content")
    expect(answers.first).to_be_visible()
    page.get_by_role("button", name="Answers", exact=True).click()
    expect(answers.first.locator(".text")).to_be_hidden()
    page.locator(".turn").nth(2).get_by_role("button", name="Open").click()
    expect(page).to_have_url(re.compile(r"step=odd-1%3A2(&|$)"))
    expect(page.locator(".turnhead")).to_have_count(0)
    expect(page.locator("article.sampled")).to_contain_text("answer 2 needle")
    page.get_by_role("button", name="All trajectories").click()
    idle(page)
    box = settled_box(table(page))
    page.mouse.click(box["x"] + 80, box["y"] + HEAD + ROW * 1.5)
    expect(page).to_have_url(re.compile("trajectory="))
    idle(page)
    second = page.url
    page.get_by_role("button", name="Previous trajectory").click()
    expect(page).not_to_have_url(second)
    expect(page.get_by_role("button", name="Previous trajectory")).to_be_disabled()
    page.get_by_role("button", name="Next trajectory").click()
    expect(page).to_have_url(re.compile(re.search(r"trajectory=[^&]+", second).group()))


def test_settings_revoke_keys_back_up_check_and_preview_a_deletion(demo, visit, tmp_path):
    client = demo[1]
    key = client.call("POST", "/api/v1/sessions", {"agent": "to-revoke"})["api_key"]
    models, headers = f"{demo[0].gateway_url}/v1/models", {"Authorization": f"Bearer {key}"}
    assert httpx.get(models, headers=headers, timeout=30).status_code != 401
    page = visit("settings")
    keys = page.get_by_test_id("stDataFrame").first
    keys.scroll_into_view_if_needed()
    box = settled_box(keys)
    page.mouse.click(box["x"] + 15, box["y"] + HEAD + ROW / 2)
    page.get_by_role("button", name="Revoke 1 key").click()
    expect(page.get_by_text("1 key revoked")).to_be_visible()
    assert httpx.get(models, headers=headers, timeout=30).status_code == 401

    page.get_by_label("New folder on the studio's machine").fill(str(tmp_path / "copy"))
    page.get_by_role("button", name="Back up now").click()
    expect(page.get_by_text(f"claw-studio restore {tmp_path / 'copy'}")).to_be_visible()
    n_steps = client.call("GET", "/api/v1/stats")["n_steps"]
    assert restore(tmp_path / "copy", tmp_path / "restored")["n_steps"] == n_steps

    days = page.get_by_role("spinbutton", name="Older than, days")
    days.fill("0")
    days.press("Enter")
    counts = client.call("POST", "/api/v1/retention", {"older_than_days": 0})
    expect(figure(page, "Would be deleted")).to_have_text(f"{counts['n_trajectories']:,}")
    expect(figure(page, "Kept: recent")).to_have_text(f"{counts['n_kept_recent']:,}")

    name = page.get_by_label("Reviewer name")
    name.fill("Ada")
    name.press("Enter")
    expect(page.get_by_text("Labels are now stored as Ada")).to_be_visible()
    page.goto(f"{demo[0].url}/settings")
    expect(page.get_by_label("Reviewer name")).to_have_value("Ada")

    page.get_by_role("button", name="Check every step").click()
    counts_of_check = f"{n_steps} steps, {n_steps} compared with the journal, 0 without a record"
    expect(page.get_by_text(counts_of_check)).to_be_visible(timeout=180_000)


def test_trends_and_problems_lead_to_their_rows(demo, visit):
    page = visit("?trend=n_steps&split=agent")
    plot = page.locator(".st-key-panel-trends .js-plotly-plot")
    agents = {one["agent"] for one in client_trajectories(demo[1])}
    expect(plot.locator(".legendtext")).to_have_count(len(agents))
    line = page.locator(".st-key-panel-attention tbody tr", has_text="Groups without variance")
    shown = line.locator("td").nth(1).inner_text().split()[0]
    line.locator("a").click()
    expect(page.get_by_text(re.compile(rf"^1–{shown} of {shown} prompt groups?$"))).to_be_visible()


def client_trajectories(client: StudioClient) -> list[dict[str, Any]]:
    """The first step of every trajectory."""
    steps: list[dict[str, Any]] = client.call("GET", "/api/v1/steps?where=step_index=0&limit=1000")["steps"]
    return steps
