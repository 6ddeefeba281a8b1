"""Browser test of a pool of a million steps: every common action responds in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.pool import Pool
from tests.browser.conftest import start_studio
from tests.browser.page_walk import PageWalk, summary
from tests.browser.walk import Walk, percentiles
from tests.e2e.test_million import FILL
from tests.left_out import only_in_ci

pytestmark = [
    pytest.mark.timeout(400),
    only_in_ci("takes two minutes"),
]

LIMIT_MS = 2500
"""Half a second is the goal, measured by bench/studio; here other tests may run beside."""
PAGE_LIMIT_MS = 5000
"""The same for pages after a write, which nothing is cached for."""
AGENTS = "UPDATE steps SET agent = CASE WHEN step_id % 3 = 0 THEN 'coder' ELSE 'browser' END"


@pytest.fixture(scope="module")
def million(tmp_path_factory, browser):
    """A studio on 2,500 groups of 8 rollouts of 50 steps."""
    folder: Path = tmp_path_factory.mktemp("million")
    (folder / "data").mkdir()
    pool = Pool.open(folder / "data" / "pool.duckdb")
    with pool._db.write() as cursor:
        cursor.execute(FILL)
        cursor.execute(AGENTS)
    pool.integrity.rebuild_state()
    assert pool.steps.count() == 1_000_000
    pool.close()
    running = start_studio(folder, env={"CLAW_STUDIO_ENGINE": "http://127.0.0.1:9/v1"})
    yield running
    running.stop()


def test_everyday_moves_answer_at_once(million, watch):
    page = watch(f"{million.url}/inspect").page
    page.set_default_timeout(60_000)
    timings = percentiles(Walk(page, million.url, 5, lambda n: f"g{100 + n}").run())
    assert set(timings) == {
        "page turn", "filter", "open a trajectory", "next step", "token view", "bulk label", "undo",
        "review: verdict and next",
    }  # fmt: skip
    slow = {name: row for name, row in timings.items() if row["p50_ms"] > LIMIT_MS}
    assert not slow, timings


def test_pages_after_a_write_are_whole_soon(million, watch):
    page = watch(f"{million.url}/inspect").page
    page.set_default_timeout(60_000)
    timings = summary(PageWalk(page, million, 3, lambda n: f"t{8 * n}.3").run())
    assert set(timings) == {
        "Overview after a write", "Inspect after a write", "Curate after a write", "Batch after a write",
        "Estimators after a write", "What if after a write", "Distributions after a write", "Funnel after a write",
        "prompt groups after a write", "Curate after an arrival", "SQL query",
    }  # fmt: skip
    slow = {name: row for name, row in timings.items() if row["p50_ms"] > PAGE_LIMIT_MS}
    assert not slow, timings
