"""Tests of packing large plans: marked estimates, packing on request, and equal rows afterwards."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
import streamlit as st

from core.batch import result
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.types import View
from studio.charts.plan import group_tokens, groups_per_bar, tick_step
from studio.widgets.plans import packing
from studio.widgets.plans.packing import PackingJob
from tests.conftest import eventually
from tests.pages.samples import agent_steps
from tests.pages.test_lab_pages import components, figure

RECIPE = {"token_budget": 1024}


class Slow:
    """A reader that waits for permission before each chunk of tokens."""

    def __init__(self, reader) -> None:
        self.reader, self.asked, self.go = reader, threading.Event(), threading.Event()

    def sequences(self, step_uids):
        self.asked.set()
        assert self.go.wait(30)
        return self.reader.sequences(step_uids)


@pytest.fixture(params=[("LAYOUT_TOKENS_MAX", 1000), ("LAYOUT_STEPS_MAX", 10)], ids=["tokens", "steps"])
def big(request, service, monkeypatch):
    """Forty groups, and a limit that makes them a big plan of which a sample holds a few."""
    st.cache_resource.clear()  # the same plan may have been packed by another test
    steps, completions = agent_steps(40, 2)
    service.pool.steps.append(steps, completions=completions)
    made = plan(service.pool, View(), parse_recipe(RECIPE))
    monkeypatch.setattr(result, *request.param)
    monkeypatch.setattr(packing, "SAMPLE_TOKENS", made.counts["n_tokens"] // 8)
    return made


def test_a_big_plan_is_estimated_then_packed_when_asked(big, open_page):
    page = open_page("optimise", recipe='{"token_budget": 1024}')
    assert page.failures == []
    exact = big.pack()
    assert figure(page, "Steps") == str(len(big.steps))
    assert figure(page, "Token ratio").startswith("≈ ")
    assert float(figure(page, "Token ratio")[2:]) == pytest.approx(exact.token_ratio, rel=0.15)
    match = re.search(r"from (\d+) of 40 groups", page.app.caption[0].value)
    assert match and 3 <= int(match[1]) <= 6
    assert components(page, "tree")  # a group's tree needs no packing

    page = open_page("optimise", recipe='{"token_budget": 1024}', tab="rows")
    assert "No packed rows yet" in page.html and not components(page, "rows")
    page.app.button(key="pack").click().run()

    def done():
        page.app.run()
        return components(page, "rows")

    eventually(done)
    assert figure(page, "Rows") == str(len(exact.rows))
    assert figure(page, "Token ratio") == f"{exact.token_ratio:.3f}".rstrip("0")
    # Another number of ranks, and a label that changes nothing chosen, keep what was read.
    other = open_page("optimise", recipe='{"token_budget": 1024, "n_ranks": 4}', tab="rows")
    assert any("Over 4 ranks" in one.value for one in other.app.caption)


def test_a_packing_ends_when_told_and_begins_again(big):
    reader = Slow(big.reader)
    object.__setattr__(big, "reader", reader)
    job = PackingJob(big)
    job.start()
    assert reader.asked.wait(30) and job.running
    job.cancel()
    reader.go.set()
    job.join(30)
    assert not job.running and not big.is_packed and job.error is None
    job.start()
    job.join(30)
    assert big.is_packed and job.done == job.total == int(big.lengths.sum())


def test_a_packing_that_fails_says_why(big):
    class Broken:
        def sequences(self, step_uids):
            raise OSError("the disk is gone")

    object.__setattr__(big, "reader", Broken())
    job = PackingJob(big)
    job.start()
    job.join(30)
    assert "the disk is gone" in str(job.error) and not big.is_packed


def test_rows_come_by_the_page_and_any_group_by_its_name(filled, open_page, service):
    made = plan(filled.pool, View(), parse_recipe({"token_budget": 1024}))
    page = open_page("optimise", recipe='{"token_budget": 1024}', tab="rows")
    drawn = components(page, "rows")[0]["rows"]
    assert [row["index"] for row in drawn] == list(range(min(100, len(made.layout.rows))))
    assert any(f"of {len(made.layout.rows)} rows" in one.value for one in page.app.caption)
    shown = open_page("optimise", recipe='{"token_budget": 1024}', show="row:1")
    assert shown.app.selectbox[0].value == "row:1"


@pytest.mark.parametrize("n", [1, 300, 301, 2375])
def test_bars_that_stand_for_several_groups_lose_no_token(n):
    rng = np.random.default_rng(n)
    tokens = rng.integers(100, 9000, n)
    drawn = group_tokens([f"g{i}" for i in range(n)], tokens, tokens // 3)
    each = groups_per_bar(n)
    assert len(drawn.data[0].y) == -(-n // each) <= 300
    weights = np.minimum(each, n - np.arange(0, n, each))
    assert np.sum(np.asarray(drawn.data[0].y) * weights) == pytest.approx(tokens.sum())
    assert drawn.data[0].y[0] == pytest.approx(tokens[:each].mean())


@pytest.mark.parametrize(("n", "step"), [(3, 1), (12, 1), (13, 2), (60, 5), (120, 10), (121, 20), (2375, 200)])
def test_ticks_are_round(n, step):
    assert tick_step(n) == step
