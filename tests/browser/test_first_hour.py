"""The first hour of a new user, walked in Chromium: from an empty studio to a batch that a trainer acknowledged.

Each step is asserted by what lies behind the page: the engine's log, the API, the exported file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, TimeoutError, expect

from core.client import StudioClient
from core.pool import Pool
from core.serving.process import EngineProcess
from core.serving.tokenizer import load_tokenizer
from core.tasks.demo import DEMO_DATA
from core.trainer import Trainer
from tests.browser.conftest import Studio, start_studio
from tests.browser.test_lab_walk import click_cell
from tests.browser.walk import idle
from tests.conftest import eventually, scripted_engine

pytestmark = pytest.mark.timeout(600)

TASK = "How many rows of sales.csv have an amount above 100?"
TABLE = "day,amount\n1,250\n2,40\n3,117\n4,99\n"
WRONG, RIGHT = "3 rows have an amount above 100.", "2 rows have an amount above 100."
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
SCRIPT = {
    "rules": [
        {"when": {"turn": 0}, "reply": {"tool_calls": [{"name": "read_file", "arguments": {"path": "sales.csv"}}]}}
    ],
    "default": {"content": WRONG},
}


@pytest.fixture
def place(tmp_path, browser) -> Iterator[tuple[Studio, EngineProcess]]:
    """An empty studio whose engine is scripted, and that engine."""
    with scripted_engine(tmp_path, SCRIPT) as engine:
        engine.wait_ready()
        running = start_studio(tmp_path / "studio", env={"CLAW_STUDIO_ENGINE": str(engine.base_url)})
        yield running, engine
        running.stop()


def ask(base_url: str, api_key: str, model: str) -> str:
    """The user's own agent: a loop around the OpenAI library with one tool."""
    messages: list[Any] = [{"role": "user", "content": TASK}]
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        while True:
            answer = client.chat.completions.create(model=model, messages=messages, tools=[READ])  # type: ignore[list-item]
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return said.content or ""
            messages += [{"role": "tool", "tool_call_id": one.id, "content": TABLE} for one in said.tool_calls]


def entry(page: Page, name: str) -> None:
    """Click a page's entry in the sidebar, and wait until the page is drawn."""
    page.get_by_test_id("stSidebarNavLink").filter(has_text=re.compile(f"{name}$")).click()
    expect(page.locator(".cs-head h1")).to_have_text(name)
    idle(page)


def choose(page: Page, label: str, option: str) -> None:
    """Choose an option of a select box; a list that a redraw closed is opened again."""
    box = page.get_by_role("combobox", name=label)

    def chosen() -> bool:
        if box.input_value() != option:
            page.keyboard.press("Escape")
            box.click()
            with contextlib.suppress(TimeoutError):
                page.get_by_role("option", name=option, exact=True).click(timeout=5000)
        return box.input_value() == option

    eventually(chosen, timeout_s=90)
    idle(page)


def show_more_settings(page: Page) -> None:
    """Open the recipe's other settings; a click that a redraw took is made again."""

    def shown() -> bool:
        if not page.get_by_role("combobox", name="Training data").is_visible():
            page.get_by_text(re.compile("^More settings")).click()
            idle(page)
        return page.get_by_role("combobox", name="Training data").is_visible()

    eventually(shown, timeout_s=90)


def figure(page: Page, label: str) -> Any:
    """The value of a figure."""
    return page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile(f"^{label}$"))).first.locator(".v")


def test_from_an_empty_studio_to_an_acknowledged_batch(place, watch):
    studio, engine = place
    client = StudioClient(studio.gateway_url)
    page: Page = watch(studio.url).page

    # Empty, then the demo data.
    expect(page.get_by_text("Nothing is captured yet")).to_be_visible()
    assert client.stats()["n_steps"] == 0
    page.get_by_role("button", name="Load demo data").click()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    with pa.input_stream(str(DEMO_DATA / "journal.jsonl.zst"), compression="zstd") as stream:
        n_demo = sum(json.loads(line)["kind"] == "call" for line in stream.read().splitlines())
    assert client.stats()["n_steps"] == n_demo > 100
    expect(figure(page, "Steps")).to_have_text(str(n_demo))

    # Their own agent, connected as the panel says.
    shown = page.get_by_test_id("stCode").first.inner_text()
    connected = {name: re.search(rf'{name}="([^"]+)"', shown) for name in ("base_url", "api_key", "model")}
    assert all(connected.values()), shown
    assert ask(**{name: value.group(1) for name, value in connected.items() if value}) == WRONG
    expect(page.get_by_text("First call seen")).to_be_visible()
    log = httpx.get(f"{str(engine.base_url).removesuffix('/v1')}/__log").json()["requests"]
    page.get_by_role("link", name="Inspect it").click()
    expect(page).to_have_url(re.compile(r"/inspect\?step="))
    uid = page.locator(".st-key-crumbs code").inner_text()
    steps = [client.step(one["step_uid"]) for one in client.trajectory(uid)["steps"]]
    assert [one["response_ids"] for one in steps] == [one["choices"][0]["response_ids"] for one in log]
    for step, request in zip(steps, log, strict=True):
        assert np.float32(step["response_logprobs"]).tolist() == request["choices"][0]["logprobs"]

    # Investigate: the list, the whole transcript, and why a demo trajectory has its reward.
    entry(page, "Inspect")
    expect(page).to_have_url(re.compile(r"/inspect$"))
    expect(page.get_by_text("1–50 of 65 trajectories")).to_be_visible()
    page.locator("button.value[data-facet=agent][data-value=openai]").click()
    expect(page.get_by_text("1–1 of 1 trajectory")).to_be_visible()
    click_cell(page, 0)
    page.get_by_role("radio", name="Transcript").click()
    expect(page).to_have_url(re.compile("tab=transcript"))
    idle(page)
    for text in (TASK, "3,117", WRONG):
        expect(page.get_by_text(text).first).to_be_visible()
    expect(page.locator(".cs-why")).to_contain_text("no reward was given")
    assert client.trajectory(uid)["reward"] is None

    # Label: the answer is wrong.
    page.get_by_role("button", name="Wrong").click()
    idle(page)
    reward = page.get_by_role("spinbutton", name="Reward")
    reward.fill("0")
    reward.press("Enter")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator(".cs-why")).to_contain_text("(studio)")
    assert client.trajectory(uid)["reward"] == 0.0

    # Correct the answer: what was wrong is the rejected one of a pair.
    page.get_by_role("radio", name="Messages").click()
    page.locator("button.row").nth(1).click()
    page.get_by_role("radio", name="Edit").click()
    page.get_by_label("Answer", exact=True).fill(RIGHT)
    page.get_by_label("Answer", exact=True).press("Control+Enter")
    page.get_by_role("button", name="Save edit").click()
    expect(page.locator(".cs-table").get_by_text("in force")).to_be_visible()

    # Freeze.
    entry(page, "Datasets")
    page.get_by_role("button", name="Freeze a view").click()
    page.locator("button.value[data-facet=agent][data-value=openai]").click()
    expect(figure(page, "Steps frozen")).to_have_text("2")
    page.get_by_role("textbox", name="Name").fill("first-hour")
    page.get_by_role("button", name="Freeze", exact=True).click()
    expect(page.get_by_text("Frozen: first-hour, 2 steps")).to_be_visible()
    assert client.call("GET", "/api/v1/datasets/first-hour/verify")["intact"] is True
    assert client.call("GET", "/api/v1/datasets/first-hour")["n_steps"] == 2

    # A plan of pairs, its preview, and the file.
    entry(page, "Batch")
    choose(page, "Algorithm", "DPO pairs")
    show_more_settings(page)
    choose(page, "Training data", "Version first-hour")
    page.get_by_role("radio", name="Export").click()
    choose(page, "Format", "TRL DPO")
    in_loss = page.locator(".row mark")
    expect(in_loss).to_have_text([f"{RIGHT}<|im_end|>", f"{WRONG}<|im_end|>"])
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page.get_by_text("· sha256")).to_be_visible()
    (path,) = (studio.data_dir / "exports").glob("trl_dpo*.parquet")
    (pair,) = pq.read_table(path).to_pylist()
    sampled = log[1]["choices"][0]
    assert pair["prompt_ids"] == sampled["prompt_ids"] and pair["rejected_ids"] == sampled["response_ids"]
    assert pair["chosen_ids"] == load_tokenizer().encode(f"{RIGHT}<|im_end|>")
    assert pair["chosen_mask"] == [1] * len(pair["chosen_ids"])

    # A trainer fetches by the recipe that is activated on Consume, and acknowledges.
    entry(page, "Consume")
    choose(page, "Algorithm", "DPO pairs")
    show_more_settings(page)
    choose(page, "Training data", "Version first-hour")
    use = page.get_by_role("button", name="Use for the next fetch")

    def is_used() -> bool:
        """A click that comes with a change is not taken: the page shows the change first."""
        if use.is_visible():
            use.click()
            idle(page)
        return page.get_by_text("default v1").is_visible()

    eventually(is_used, timeout_s=90)
    with Trainer(client, "trainer-1") as trainer:
        batch = trainer.fetch()
        assert batch is not None, trainer.missing
        assert batch.head["dataset_version"]["name"] == "first-hour"
        assert [one["response_ids"] for one in batch.steps] == [pair["chosen_ids"], pair["rejected_ids"]]
        assert [one["prompt_ids"] for one in batch.steps] == [pair["prompt_ids"]] * 2
        assert [one["token_source"] for one in batch.steps] == ["edited", "engine"]
        batch.ack(update=0, metrics={"loss": 0.69})
    page.reload()
    expect(figure(page, "Consumed")).to_have_text("1")
    assert client.call("GET", f"/api/v1/batches/{batch.uid}")["state"] == "acked"

    # What the person decided is in the pool's file, as opinions; the captured steps are as they were.
    page.goto("about:blank")
    studio.stop()
    pool = Pool.open(studio.data_dir / "pool.duckdb")
    standing = pool.review.standing("trajectory", uid)
    assert (standing["correct"], standing["reward"]) == (False, 0.0)
    assert [list(pool.steps.get(one["step_uid"])["response_ids"]) for one in steps] == [
        one["choices"][0]["response_ids"] for one in log
    ]
    pool.close()
