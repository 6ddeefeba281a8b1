"""Reports of attempts that are written down by hand: every figure is counted here by other means."""

from __future__ import annotations

import json

import pytest

from core.errors import InvalidInput
from core.report import Prices, Subject, Trial, compare, compare_markdown, report, report_markdown


def trials() -> list[Trial]:
    """Task a: 1, 1, 0, 0.4. Task b: 0.6 and three without a score. Task c: not begun, four times."""
    known = {"wall_s": 10.0, "cpu_s": 2.0, "n_calls": 3, "n_prompt_tokens": 1000, "n_response_tokens": 100}
    made = [
        Trial("a", "files", "x", 1, "solved" if score > 0.5 else "failed", score, **known)
        for score in (1.0, 1.0, 0.0, 0.4)
    ]
    made += [Trial("b", "plans", "x", 2, "solved", 0.6, **{**known, "wall_s": 30.0})]
    made += [Trial("b", "plans", "x", 2, outcome, None) for outcome in ("crashed", "refused", "lost")]
    return made + [Trial("c", "plans", "x", begun=False) for _ in range(4)]


def test_every_attempt_is_counted_and_unknown_is_not_zero():
    total = report(Subject("r", trials()))["total"]
    assert (total["n_tasks"], total["n_attempts"], total["n_scored"]) == (3, 12, 5)
    assert total["outcomes"] == {"crashed": 1, "failed": 2, "lost": 1, "refused": 1, "skipped": 4, "solved": 3}
    assert total["mean"]["value"] == pytest.approx((0.6 + 0.6) / 2)
    assert total["mean_missing_as_zero"]["value"] == pytest.approx((0.6 + 0.15 + 0.0) / 3)
    assert total["solved"]["value"] == pytest.approx((0.5 + 1.0) / 2)
    assert total["n_correct"] == 2
    passes = {one["k"]: one for one in total["passes"]}
    assert set(passes) == {1, 2, 4}
    assert passes[1]["any"]["value"] == pytest.approx((0.5 + 1.0) / 2)
    # Only task a has two scored attempts: of its six pairs, five have a success and one has two.
    assert (passes[2]["any"]["n_tasks"], passes[2]["any"]["value"]) == (1, pytest.approx(5 / 6))
    assert passes[2]["all"]["value"] == pytest.approx(1 / 6)
    assert total["wall_s"] == {"mean": 14.0, "median": 10.0, "p90": pytest.approx(22.0), "total": 70.0}
    assert (total["n_calls"], total["n_prompt_tokens"], total["cost_usd"]) == (15, 5000, None)


def test_cost_needs_prices():
    total = report(Subject("r", trials()), prices=Prices(2.0, 10.0))["total"]
    assert total["cost_usd"] == pytest.approx(5000 * 2e-6 + 500 * 10e-6)
    with pytest.raises(InvalidInput, match="price"):
        Prices(-1.0, 0.0)


def test_parts_are_the_reports_of_their_attempts():
    made = report(Subject("r", trials()))
    by = {part["name"]: part for part in made["by"]["category"]}
    assert set(by) == {"files", "plans"}
    assert by["plans"]["n_tasks"] == 2 and by["plans"]["mean"]["value"] == pytest.approx(0.6)
    assert [part["name"] for part in made["by"]["policy_version"]] == ["1", "2", "unknown"]
    for parts in made["by"].values():
        assert sum(part["n_attempts"] for part in parts) == 12
    assert [(row["task"], row["n_scored"], row["n_solved"], row["mean"]) for row in made["tasks"]] == [
        ("a", 4, 2, pytest.approx(0.6)),
        ("b", 1, 1, 0.6),
        ("c", 0, 0, None),
    ]
    json.dumps(made, allow_nan=False)


def test_two_runs_are_compared_task_by_task():
    first = Subject(
        "one", [Trial(task, "k", score=score) for task, score in zip("abcd", (0.2, 0.4, 0.6, 0.0), strict=True)]
    )
    second = Subject(
        "two", [Trial(task, "k", score=score) for task, score in zip("bcde", (0.8, 0.6, 0.5, 1.0), strict=True)]
    )
    made = compare(first, second)
    pair = made["paired"]
    assert pair["difference"]["n_tasks"] == 3 and pair["difference"]["value"] == pytest.approx(0.3)
    assert (pair["better"], pair["equal"], pair["worse"]) == (2, 1, 0)
    assert (made["n_tasks_only_first"], made["n_tasks_only_second"]) == (1, 1)
    assert pair["permutation_p"] == 0.5, "of four sign patterns of two differences, two are as far from 0"
    text = compare_markdown(made)
    assert "one and two" in text and "0.300" in text and "1 and 1" in text
    apart = compare(first, Subject("other", [Trial("z", score=1.0)]))
    assert apart["paired"] is None and "No task has a score in both" in compare_markdown(apart)


def test_markdown_says_what_has_no_score():
    text = report_markdown(report(Subject("r|1", trials(), {"pack": "p <b>", "model": None})))
    assert (
        "# Report of r\\|1" in text and "- pack: p &lt;b>" in text and "model" not in text.split("##")[0].split("|")[0]
    )
    assert "1 crashed, 1 refused, 1 lost, 4 skipped" in text
    assert "0.600" in text and "2 of 3" in text and "## By category" in text and "## By agent" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_a_run_without_any_score():
    made = report(Subject("r", [Trial("a", begun=False)]))
    assert made["total"]["mean"] is None and made["total"]["passes"] == []
    assert "–" in report_markdown(made)
