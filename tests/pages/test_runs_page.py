"""Runs on pages: the list, the filter, the comparison, the trends by run."""

from __future__ import annotations

import pytest

from core.service import Service
from core.types import Step


@pytest.fixture
def two_runs(service: Service) -> Service:
    steps, completions = [], []
    for run, reward in (("base", 0.0), ("tuned", 1.0)):
        for task in range(4):
            uid = f"{run}-{task}"
            steps += [
                Step(
                    f"{uid}.{n}", uid, f"p{task}", n, 1.79e9 + task, model="policy", prompt_ids=[1] * 5,
                    response_ids=[2], metadata={"run": run},
                )
                for n in range(2 + (run == "base") + task % 2)
            ]  # fmt: skip
            completions.append({"trajectory_uid": uid, "reward": reward if task else 0.5})
    service.pool.steps.append([*steps, Step("alone.0", "alone", "p9", 0, 1.79e9)], completions=completions)
    return service


def test_runs_are_listed_and_two_are_compared(two_runs, open_page):
    page = open_page("inspect", level="runs", order="run asc", picked=["base", "tuned"])
    assert page.app.dataframe[0].value["run"].tolist() == ["base", "tuned"]
    assert page.app.dataframe[0].value["n_trajectories"].tolist() == [4, 4]
    page.app.button(key="pick-compare").click().run()
    assert page.failures == [] and page.app.query_params["runs"] == ["base", "tuned"]
    # Reward 0.125 and 0.875; a task has 1 more or no more: t(0.975, 3) = 3.182, standard error 0.25.
    assert "+0.75" in page.html and "-0.046 to +1.546" in page.html
    assert "on the 4 tasks of both runs" in "".join(one.value for one in page.app.caption)
    page.app.number_input(key="prices-price_prompt").set_value(10.0).run()
    page.app.number_input(key="prices-price_sampled").set_value(20.0).run()
    # 5 prompt tokens and 1 sampled token a call, 3.5 calls of a task: 3.5 * (50 + 20) / 1e6.
    assert page.failures == [] and "$0.000245" in page.html


def test_a_click_on_a_run_shows_its_trajectories(two_runs, open_page):
    page = open_page("inspect", run="tuned")
    assert set(page.app.dataframe[0].value["run"]) == {"tuned"} and len(page.app.dataframe[0].value) == 4
    assert "<a href" in open_page("inspect", runs=["base", "tuned"]).html
    assert "Two runs" not in open_page("inspect", runs=["base"]).html


def test_an_unknown_run_is_named(two_runs, open_page):
    page = open_page("inspect", runs=["base", "gone"])
    assert "gone" in page.html and "Traceback" not in page.html


def test_without_runs_the_list_says_how_to_name_one(service, open_page):
    service.pool.steps.append([Step("alone.0", "alone", "p9", 0, 1.79e9)])
    assert "X-Run" in open_page("inspect", level="runs").html


def test_trends_by_run(two_runs, open_page):
    page = open_page("overview", split="run", trend="n_steps")
    assert page.failures == []
