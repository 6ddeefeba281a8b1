"""Browser tests of the frame and the live pages."""

from __future__ import annotations

import re
import signal

import httpx
import pytest
from playwright.sync_api import expect

from studio.nav import PAGES
from tests.conftest import eventually
from tests.left_out import only_in_ci

STEP = {
    "prompt_uid": "p",
    "prompt_ids": [1, 2, 3],
    "response_ids": [4, 5],
    "response_logprobs": [-0.1, -0.2],
    "messages": [{"role": "user", "content": "hello"}],
}


def submit(studio, trajectory_uid: str, n_steps: int = 1) -> None:
    steps = [{**STEP, "trajectory_uid": trajectory_uid, "step_index": index} for index in range(n_steps)]
    httpx.post(f"{studio.gateway_url}/api/v1/steps", json={"steps": steps}, timeout=30).raise_for_status()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=only_in_ci("every page"))])
def test_every_page_opens_by_its_link(shared_studio, watch, scheme):
    watched = watch(shared_studio.url, color_scheme=scheme)
    for info in PAGES.values():
        watched.page.goto(f"{shared_studio.url}/{info.url_path}")
        expect(watched.page.locator(".cs-head h1")).to_have_text(info.title)
        expect(watched.page.locator(".cs-strip")).to_contain_text("Dropped")
        watched.check()
    background = watched.page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    red = int(re.search(r"\d+", background).group())
    assert (red < 64) == (scheme == "dark")


def test_own_fonts_load_from_the_studio_itself(shared_studio, watch):
    requested: list[str] = []
    watched = watch(shared_studio.url)
    watched.page.on("request", lambda request: requested.append(request.url))
    watched.page.goto(f"{shared_studio.url}/settings")
    expect(watched.page.locator(".cs-head h1")).to_have_text("Settings")
    eventually(lambda: watched.page.evaluate("document.fonts.check('14px Inter')"))
    assert {httpx.URL(url).host for url in requested if url.startswith("http")} == {"127.0.0.1"}


def test_steps_arrive_on_open_pages_and_in_every_tab(studio, watch):
    overview, collect = watch(studio.url), watch(f"{studio.url}/collect")
    expect(overview.page.get_by_text("Nothing is captured yet")).to_be_visible()
    submit(studio, "t-live", 2)
    expect(overview.page.locator(".cs-fig", has_text="model calls").locator(".v")).to_have_text("2")
    expect(collect.page.locator("[data-testid=stDataFrame]")).to_be_visible()
    for watched in (overview, collect):
        expect(watched.page.locator(".cs-foot dd").first).to_have_text("2")


def test_an_empty_overview_says_what_the_product_does_and_that_its_model_is_untrained(shared_studio, watch):
    page = watch(shared_studio.url).page
    empty = page.locator(".cs-empty").first
    expect(empty).to_contain_text("Nothing is captured yet")
    for words in ("records every model call", "tokens, log-probs and policy version", "correct rewards", "a trainer"):
        expect(empty).to_contain_text(words)
    expect(page.get_by_text("The embedded model is untrained.")).to_be_visible()


def test_a_key_of_the_connect_panel_is_seen_at_its_first_call(studio, watch):
    watched = watch(f"{studio.url}/?connect=curl")
    expect(watched.page.get_by_text("Waiting for the first call")).to_be_visible()
    key = re.search(r"cs-[\w-]{16,}", watched.page.locator("[data-testid=stCode]").first.inner_text()).group()
    body = {"model": "local", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answer = httpx.post(
        f"{studio.gateway_url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=120,
    )
    answer.raise_for_status()
    expect(watched.page.get_by_text("First call seen")).to_be_visible()
    watched.page.get_by_role("link", name="Inspect it").click()
    expect(watched.page).to_have_url(re.compile(r"/inspect\?step="))


def test_the_theme_can_be_switched_by_hand(shared_studio, watch):
    watched = watch(shared_studio.url)
    menu = watched.page.get_by_test_id("stMainMenu")
    expect(menu).to_be_visible()


def test_sigterm_closes_the_service_in_order(studio):
    submit(studio, "t-last")
    # uvicorn hands the signal on after its orderly end.
    assert studio.stop() in {0, -signal.SIGTERM}
    assert not (studio.data_dir / "pool.duckdb.wal").exists()
    assert "Traceback" not in studio.log
    import duckdb

    with duckdb.connect(str(studio.data_dir / "pool.duckdb"), read_only=True) as pool:
        assert pool.execute("SELECT count(*) FROM steps").fetchone() == (1,)
