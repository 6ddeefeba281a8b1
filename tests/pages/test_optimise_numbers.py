"""Tests of the Optimise page: its numbers equal those of the plan's layout and of the export."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.export.packed_tree import read_rows
from core.types import View
from studio.kit import compact, count, number
from studio.widgets.optimise.savings import savings
from tests.pages.samples import agent_steps
from tests.pages.test_lab_pages import components

RECIPE = {"token_budget": 1024}


def shown(page, label: str) -> str:
    match = re.search(rf'<div class="l">{re.escape(label)}</div><div class="v">(.*?)</div>', page.html)
    assert match, f"no figure {label!r}"
    return unescape(match.group(1))


def test_page_plan_and_file_have_the_same_numbers(filled, open_page, tmp_path):
    page = open_page("optimise", recipe='{"token_budget": 1024}', tab="rows")
    made = plan(filled.pool, View(), parse_recipe(RECIPE))
    written = list(read_rows(export(made, filled.pool, "packed_tree", tmp_path).path))
    n_packed = sum(row.n_packed for row, _, _ in written)
    n_tokens = sum(row.n_original for row, _, _ in written)
    pairs = sum(row.attention_pairs for row, _, _ in written)
    uids = {uid for _, _, step_uids in written for uid in step_uids}
    assert shown(page, "Steps") == count(len(uids)) == count(len(made.steps))
    assert shown(page, "Tokens before") == compact(n_tokens) == compact(made.layout.n_tokens)
    assert shown(page, "Tokens after") == compact(n_packed) == compact(made.layout.n_packed_tokens)
    assert shown(page, "Token ratio") == number(n_packed / n_tokens)
    assert shown(page, "Attention pairs") == compact(pairs)
    assert shown(page, "Rows") == count(len(written))
    drawn = components(page, "rows")[0]["rows"]
    assert [row["n_tokens"] for row in drawn] == [row.n_packed for row, _, _ in written]
    lengths = filled.pool.steps.sequences(sorted(uids)).lengths
    separate = int((lengths * (lengths + 1) // 2).sum())
    bound = (6 * (1.9e8 * n_tokens + 8192 * separate)) / (6 * (1.9e8 * n_packed + 8192 * pairs))
    assert shown(page, "Speed-up") == f"≤ {bound:.2f} ×"


def test_the_ranks_that_are_set_are_those_of_plan_and_file(filled, open_page, tmp_path):
    page = open_page("optimise", recipe='{"token_budget": 1024, "n_ranks": 2}', tab="rows")
    made = plan(filled.pool, View(), parse_recipe({**RECIPE, "n_ranks": 2}))
    path = export(made, filled.pool, "packed_tree", tmp_path).path
    shares = [sum(1 for _ in read_rows(path, rank=rank)) for rank in range(2)]
    assert any(f"Over 2 ranks: {shares[0]} rows, {shares[1]} rows" in one.value for one in page.app.caption)
    page.app.number_input[0].set_value(4).run()
    assert any("Over 4 ranks" in one.value for one in page.app.caption)


def test_savings_by_anything_sum_to_the_plan(filled):
    made = plan(filled.pool, View(), parse_recipe(RECIPE))
    for by in ("group", "step", "agent"):
        rows = savings(made, by)
        assert sum(row["tokens"] for row in rows) == made.layout.n_tokens
        assert sum(row["packed"] for row in rows) == made.layout.n_packed_tokens
        assert sum(row["steps"] for row in rows) == len(made.steps)
    agents = Counter(filled.pool.steps.get(uid)["agent"] or "unknown" for uid in made.step_uids)
    assert {row["name"]: row["steps"] for row in savings(made, "agent")} == agents
    starts = Counter(row["step_index"] for row in made.steps.to_pylist())  # one step of a trajectory has each index
    assert {row["name"]: row["trajectories"] for row in savings(made, "step")} == starts
    by_group = {row["name"]: row["packed"] for row in savings(made, "group")}
    assert list(by_group.values()) == made.layout.group_packed.tolist()


@pytest.mark.parametrize(("transition", "says"), [("realigned", "re-encoded"), ("tail_replaced", "tail replaced")])
def test_drift_is_counted_in_tokens(service, open_page, transition, says):
    steps, completions = agent_steps(1, 2)
    at = next(i for i, step in enumerate(steps) if step.trajectory_uid == "traj-0-0" and step.step_index == 1)
    before = list(steps[at - 1].prompt_ids) + list(steps[at - 1].response_ids)
    changed = [int(i) for i in steps[at].prompt_ids]
    changed[40] = int(np.int64(changed[40]) + 1)
    steps[at] = replace(steps[at], prompt_ids=changed, transition=transition, n_shared_tokens=40)
    kept = [step for i, step in enumerate(steps) if step.trajectory_uid != "traj-0-0" or i <= at]
    service.pool.steps.append(kept, completions=completions)
    page = open_page("optimise")
    assert page.failures == []
    lost = len(before) - 40
    assert f"{lost:,} tokens of sharing lost in 1 steps" in page.html
    assert any(f"{lost:,}" in button.label and says in button.label for button in page.app.button)
    tree = components(page, "tree")[0]
    assert ["drift", "Drift"] in tree["modes"]
