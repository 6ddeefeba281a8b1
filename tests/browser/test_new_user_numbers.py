"""What pages say about rewards, shares and refused calls, on one studio with made data.

216 trajectories of two steps, of which one is unscored, so 430 of 432 steps are scored. Two of them have a reward with
its reasons, four have rewards from -1 to 1.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, TimeoutError, expect

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.pool import Pool
from core.types import Annotation, Step, View
from tests.browser.conftest import Studio, settled_box, start_studio
from tests.browser.test_lab_walk import QUIET
from tests.browser.walk import HEAD, ROW, idle
from tests.conftest import eventually

pytestmark = pytest.mark.timeout(240)

START = 1_790_000_000.0
N_TRAJECTORIES, EACH = 216, 2
SCALE = {"scale-0": -1.0, "scale-1": -0.5, "scale-2": 0.5, "scale-3": 1.0}
REPORT = {
    "verifier": "tests_pass",
    "reward_components": {"tests": 0.75, "style": 1},
    "reward_reason": "one test failed",
    "reward_details": {"failed": ["test_a"]},
}
TASK = "Mend the parser."


def made() -> tuple[list[Step], list[dict[str, object]]]:
    """The steps, and the ends of their trajectories."""
    others = [f"t-{n:03d}" for n in range(N_TRAJECTORIES - len(SCALE) - 2)]
    groups = {uid: f"g-{n // 8}" for n, uid in enumerate(others)} | dict.fromkeys(SCALE, "scale")
    groups |= {"why-0": "why", "why-1": "why"}
    steps = [
        Step(
            step_uid=f"{uid}.{k}",
            trajectory_uid=uid,
            prompt_uid=group,
            step_index=k,
            created_at=START + 10 * place + k,
            agent="claw",
            channel="train",
            token_source="engine",
            prompt_ids=[1, 2, *range(10, 10 + 2 * k)],
            response_ids=[3, place + 20],
            response_logprobs=[-0.1, -0.2],
            messages=[{"role": "user", "content": TASK}],
            response_message={"role": "assistant", "content": f"answer {k} of {uid}"},
            parent_step_uid=f"{uid}.{k - 1}" if k else None,
            transition="extends" if k else None,
        )
        for place, (uid, group) in enumerate(groups.items())
        for k in range(EACH)
    ]
    rewards = {uid: float(n % 3 > 0) for n, uid in enumerate(others)} | SCALE
    del rewards[others[0]]
    ends: list[dict[str, object]] = [{"trajectory_uid": uid, "reward": reward} for uid, reward in rewards.items()]
    ends += [{"trajectory_uid": others[0]}, {"trajectory_uid": "why-1", "reward": 0.25}]
    ends.append({"trajectory_uid": "why-0", "reward": 0.75, "outcome": "finished", "metadata": REPORT})
    return steps, ends


@pytest.fixture(scope="module")
def counted(tmp_path_factory, browser) -> Iterator[tuple[Studio, int]]:
    """The studio, and how many steps the default plan takes."""
    folder: Path = tmp_path_factory.mktemp("numbers")
    (folder / "data").mkdir()
    pool = Pool.open(folder / "data" / "pool.duckdb")
    steps, ends = made()
    pool.steps.append(steps, completions=ends)
    # The override makes both rewards of the group equal, which is a finding.
    pool.labels.annotate(
        [Annotation("reward", 0.25, "bob", "human", START + 9999, trajectory_uid="why-0", note="style only")]
    )
    n_planned = plan(pool, View(), Recipe()).totals["n_steps"]
    pool.close()
    running = start_studio(folder, env=QUIET)
    yield running, n_planned
    running.stop()


@pytest.fixture
def visit(counted, watch) -> Callable[[str], Page]:
    """Open an address of the studio and wait until it is drawn."""

    def opened(path: str) -> Page:
        page: Page = watch(f"{counted[0].url}/{path}").page
        idle(page)
        return page

    return opened


def test_nearly_all_is_not_all_and_ready_steps_are_those_of_the_batch(counted, visit):
    page = visit("")
    chart = page.locator(".st-key-panel-funnel .js-plotly-plot")
    expect(chart.locator(".annotation-text", has_text="430  ·  99.5 %").first).to_be_visible()
    expect(chart.locator(".annotation-text", has_text=re.compile(r"^432 .* 100 %$")).first).to_be_visible()
    scored = page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile("^Scored$"))).locator(".v")
    expect(scored).to_have_text("99.5 %")
    planned = f"{counted[1]}  ·  {100 * counted[1] / (N_TRAJECTORIES * EACH):.1f} %"
    expect(chart.locator(".annotation-text", has_text=planned).first).to_be_visible()
    page = visit("batch")
    steps = page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile("^Steps$"))).locator(".v")
    expect(steps).to_have_text(str(counted[1]))


WHY = ("0.25 by bob (human), overrides the captured 0.75", "style only", "tests_pass", "one test failed")
NAMED = {"style": "1", "tests": "0.75", "failed": '["test_a"]'}


def has_reason(why: Locator) -> None:
    """The text beside a reward has all that is known of it."""
    for part in WHY:
        expect(why).to_contain_text(part)
    expect(why.locator("dt")).to_have_text(list(NAMED))
    expect(why.locator("dd")).to_have_text(list(NAMED.values()))
    expect(why.locator(".cs-tag")).to_have_text("zero_variance")


@pytest.mark.parametrize("path", ["inspect?trajectory=why-0", "curate?tab=review&item=why-0"])
def test_a_reward_has_its_reason_on_the_trajectory_and_in_review(visit, path):
    page = visit(path)
    has_reason(page.locator(".cs-why"))
    expect(page.get_by_text(TASK).first).to_be_visible()


def test_a_group_and_a_pair_have_the_reason_beside_each_reward(visit):
    page = visit("inspect?group=why")
    lines = page.locator(".line .why")
    expect(lines).to_have_text([WHY[0].removeprefix("0.25 "), "at completion"])
    tooltip = lines.first.get_attribute("title") or ""
    for part in (*WHY, *(f"{name} {value}" for name, value in NAMED.items()), "zero_variance"):
        assert part in tooltip
    page = visit("inspect?compare=why-0&compare=why-1")
    both = page.locator(".cs-why")
    expect(both).to_have_count(2)
    has_reason(both.first)
    expect(both.last).to_contain_text("0.25 at completion")


def test_rewards_are_red_in_the_lower_half_of_their_scale_and_green_in_the_upper(visit):
    page = visit("inspect?prompt_uid=scale&order=reward+asc")
    expect(page.get_by_text("1–4 of 4 trajectories")).to_be_visible()
    box = settled_box(page.get_by_test_id("stDataFrame").first)
    picture = Image.open(io.BytesIO(page.screenshot(clip=box))).convert("RGB")  # type: ignore[arg-type]
    coloured = []
    for row in range(len(SCALE)):
        line = picture.crop((0, HEAD + ROW * row + 3, picture.width, HEAD + ROW * (row + 1) - 3))
        pixels = [line.getpixel((x, y)) for x in range(line.width) for y in range(line.height)]
        coloured.append((sum(r > g + 60 for r, g, b in pixels), sum(g > r + 60 for r, g, b in pixels)))  # type: ignore
    (lowest, low, high, highest) = coloured
    assert lowest == (0, 0), "a bar without length"
    assert low[0] > 20 and low[1] == 0
    assert high[1] > low[0] and high[0] == 0
    assert highest[1] > high[1] and highest[0] == 0


def test_estimators_that_the_steps_cannot_feed_say_what_they_need(visit):
    page = visit("batch?tab=compare")
    expect(page.locator(".js-plotly-plot .ytick text").first).to_be_visible()
    expect(page.get_by_text("Not assigned")).to_have_count(0)
    box = page.get_by_role("combobox", name="Estimators")

    def is_chosen(title: str) -> bool:
        """Choose an estimator, unless it is; a list that a redraw closed is opened again."""
        tag = page.get_by_test_id("stMultiSelect").get_by_text(title)
        if not tag.is_visible():
            box.click()
            with contextlib.suppress(TimeoutError):
                page.get_by_role("option", name=title).click(timeout=5000)
            page.keyboard.press("Escape")
            idle(page)
        return tag.is_visible()

    for title in ("GiGPO · needs metadata.anchor", "Token GAE · needs metadata.token_values"):
        eventually(partial(is_chosen, title), timeout_s=60)
    missing = page.locator("table.cs-table", has_text="How to give it")
    expect(missing.locator("tbody tr")).to_have_count(2)
    expect(missing).to_contain_text("set the option anchor to observation")
    expect(missing).not_to_contain_text("t-00")


def test_a_call_with_a_mistyped_key_is_refused_and_collect_says_so(counted, visit):
    studio = counted[0]
    page = visit("collect")
    expect(page.get_by_text("unknown or revoked key")).to_have_count(0)
    key = httpx.post(f"{studio.gateway_url}/api/v1/sessions", json={"agent": "mine"}, timeout=30).json()["api_key"]
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    asked = {"model": "local", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(
        f"{studio.gateway_url}/v1/chat/completions",
        json=asked,
        headers={"Authorization": f"Bearer {wrong}"},
        timeout=30,
    )
    assert answer.status_code == 401 and "mistyped" in answer.text
    refused = page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile("^Refused$")))
    expect(refused).to_contain_text("unknown or revoked key")
    expect(refused.locator(".v")).to_have_text("1")
    calls = page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile("^Calls$"))).locator(".v")
    eventually(lambda: calls.inner_text() == "0")
