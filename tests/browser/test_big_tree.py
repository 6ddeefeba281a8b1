"""Browser tests of a tree of 10,000 nodes and a mask of 32k tokens: drawing, hover, zoom, correctness."""

from __future__ import annotations

import random
import re
import time

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from core.pool import Pool
from core.tree.build import build
from core.tree.nodes import tree_nodes
from core.types import Step
from tests.browser.conftest import start_studio

DRAWN_MS = 1000
QUIET = {"CLAW_STUDIO_ENGINE": "http://127.0.0.1:9/v1"}


def group(name: str, n_rollouts: int, n_steps: int, task: int, own: int, seed: int) -> tuple[list[Step], list[dict]]:
    """Rollouts of one prompt: a shared task, then ``own`` tokens a step; ids are drawn."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(100, 4000, task).tolist()
    steps: list[Step] = []
    for r in range(n_rollouts):
        context = list(prompt)
        for k in range(n_steps):
            answer = rng.integers(100, 4000, own).tolist()
            steps.append(
                Step(
                    step_uid=f"{name}-{r}.{k}",
                    trajectory_uid=f"{name}-{r}",
                    prompt_uid=name,
                    step_index=k,
                    created_at=1_790_000_000.0 + r + k / 100,
                    token_source="engine",
                    prompt_ids=list(context),
                    response_ids=answer,
                    response_logprobs=[-0.5] * own,
                    parent_step_uid=f"{name}-{r}.{k - 1}" if k else None,
                    n_shared_tokens=len(context) if k else 0,
                    transition="extends" if k else None,
                    policy_version=k % 3,
                )
            )
            context = context + answer
    done = [{"kind": "complete", "trajectory_uid": f"{name}-{r}", "reward": float(r % 3)} for r in range(n_rollouts)]
    return steps, done


@pytest.fixture(scope="module")
def big(tmp_path_factory, browser):
    """One studio with a group of 10,000 steps (as many nodes) and one whose tree is 32k tokens long."""
    folder = tmp_path_factory.mktemp("big")
    (folder / "data").mkdir()
    pool = Pool.open(folder / "data" / "pool.duckdb")
    wide, deep = group("wide", 1000, 10, 12, 3, 0), group("deep", 16, 20, 768, 100, 1)
    for steps, done in (wide, deep):
        pool.steps.append(steps, completions=done)
    trees = {}
    for name, (steps, _) in (("wide", wide), ("deep", deep)):
        trees[name] = build(pool.steps.sequences([step.step_uid for step in steps]))
    pool.close()
    running = start_studio(folder, env=QUIET)
    running.trees = trees
    yield running
    running.stop()


def drawn_ms(page: Page) -> int:
    """Time of the last drawing, ms, as the canvas reports it."""
    status = page.locator(".status", has_text="drawn in").inner_text()
    return int(re.search(r"drawn in (\d+) ms", status).group(1))


def test_ten_thousand_nodes(big, watch):
    nodes = tree_nodes(big.trees["wide"])
    assert len(nodes) >= 10_000
    watched = watch(f"{big.url}/optimise?show=wide")
    page = watched.page
    canvas = page.get_by_role("img", name="Prefix tree")
    expect(canvas).to_have_attribute("data-drawn", str(len(nodes)))
    assert drawn_ms(page) <= DRAWN_MS
    box = canvas.bounding_box()
    frames = []
    for x, delta in ((200, -400), (300, -400), (300, 400)):
        page.mouse.move(box["x"] + x, box["y"] + 200)
        started = time.perf_counter()
        page.mouse.wheel(0, delta)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        frames.append(time.perf_counter() - started)
        assert drawn_ms(page) <= DRAWN_MS
    assert max(frames) < 2.0, frames
    page.get_by_role("button", name="Fit").click()
    canvas.click(position={"x": 8, "y": 250})
    expect(page).to_have_url(re.compile("node=0"))
    expect(page.get_by_role("term").filter(has_text="shared by")).to_be_visible()
    page.get_by_role("button", name="Filter Inspect").click()
    expect(page).to_have_url(re.compile("/inspect.*prompt_uid=wide"))


def test_a_mask_of_32k_tokens_answers_as_the_definition_does(big, watch):
    tree = big.trees["deep"]
    assert tree.n_packed == 32_768
    watched = watch(f"{big.url}/optimise?show=deep&tab=mask")
    page = watched.page
    canvas = page.get_by_role("img", name="Attention mask of 32768")
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    assert drawn_ms(page) <= DRAWN_MS
    box = canvas.bounding_box()
    chance = random.Random(0)
    n_checked = {True: 0, False: 0}
    for zoomed in (False, True):
        if zoomed:
            page.mouse.move(box["x"] + 260, box["y"] + 300)
            for _ in range(6):
                page.mouse.wheel(0, -300)
            assert drawn_ms(page) <= DRAWN_MS
        for _ in range(25):
            page.mouse.move(box["x"] + chance.uniform(60, 500), box["y"] + chance.uniform(40, 530))
            expect(page.locator(".tip")).to_contain_text("visible")
            cells = page.locator(".tip td").all_inner_texts()
            facts = dict(zip(cells[::2], cells[1::2], strict=True))
            query, key = (int(re.match(r"[\d,]+", facts[name]).group().replace(",", "")) for name in ("query", "key"))
            seen = key <= query < int(tree.end[key])
            assert facts["mask"].startswith("visible") == seen, facts
            assert ("comes after" in facts["mask"]) == (key > query)
            n_checked[seen] += 1
            for name, position in (("query", query), ("key", key)):
                assert f"id {tree.tokens[position]}" in facts[name]
    assert min(n_checked.values()) > 0
