"""Reports of a run on disk: scores from its log, calls, tokens and policy versions from the pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.packs import Pack
from core.packs.library import PackLibrary
from core.packs.model import PackTask
from core.pool import Pool
from core.report import Prices, report, report_markdown
from core.report.source import attempts_at, runs_of, scores_by_task, subject_of
from core.rollouts import RunStore
from core.types import Annotation, AnnotationKind

from .made_run import make_run

PACK = Pack("p", [PackTask("a", "Do a.", category="files"), PackTask("b", "Do b."), PackTask("c", "Do c.")])
SCORES = {"a": [1.0, 0.0, 1.0, None], "b": [0.25], "c": []}


@pytest.fixture
def stores(tmp_path: Path):
    pool = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: 1_790_000_100.0)
    yield RunStore(tmp_path / "rollouts"), PackLibrary(tmp_path / "packs"), pool
    pool.close()


def test_a_run_s_report_counts_every_slot(stores):
    runs, packs, pool = stores
    make_run(runs, packs, pool, PACK, SCORES)
    subject = subject_of(runs.get("run-1"), packs, pool.trajectories)
    made = report(subject)
    total = made["total"]
    assert (total["n_tasks"], total["n_attempts"], total["n_scored"]) == (3, 12, 4)
    assert total["outcomes"] == {"crashed": 1, "failed": 2, "skipped": 7, "solved": 2}
    assert total["mean"]["value"] == pytest.approx((2 / 3 + 0.25) / 2)
    assert (total["n_calls"], total["n_prompt_tokens"], total["n_response_tokens"]) == (10, 5 * 8, 10)
    assert [part["name"] for part in made["by"]["policy_version"]] == ["3", "unknown"]
    assert [part["name"] for part in made["by"]["category"]] == ["files", "none"]
    assert made["about"]["agent"] == "demo" and made["about"]["pack"] == f"p {PACK.version}"


def test_a_task_s_attempts_of_all_runs_and_versions(stores):
    runs, packs, pool = stores
    make_run(runs, packs, pool, PACK, SCORES)
    newer = PACK.replaced([PackTask("a", "Do a, please.", category="files")])
    make_run(runs, packs, pool, newer, {"a": [0.5]}, run="run-2", harness="other", version=4)
    make_run(runs, packs, pool, Pack("q", PACK.tasks), {"a": [1.0]}, run="run-3")
    tried = attempts_at(runs_of(runs, "p"), packs, pool.trajectories, "p", "a")
    assert sorted((one.attempt.run, one.trial.policy_version) for one in tried) == [("run-1", 3)] * 4 + [("run-2", 4)]
    assert {one.trial.category for one in tried} == {"files"}
    scores = scores_by_task(runs_of(runs, "p"), "p")
    assert (scores["a"].n_ended, scores["a"].n_scored, scores["a"].mean) == (5, 4, pytest.approx(2.5 / 4))
    assert "c" not in scores


def test_without_a_call_and_without_its_pack(stores):
    runs, packs, pool = stores
    make_run(runs, packs, None, PACK, {"b": [1.0]}, n=1)
    for path in packs.folder.iterdir():
        path.unlink()
    subject = subject_of(runs.get("run-1"), PackLibrary(packs.folder), pool.trajectories)
    (trial,) = subject.trials
    assert (trial.category, trial.policy_version, trial.n_calls, trial.score) == ("", None, None, 1.0)


def test_adopted_rewards_count_and_are_named(stores):
    runs, packs, pool = stores
    make_run(runs, packs, pool, PACK, SCORES)
    run = runs.get("run-1")
    channel = pool.trajectories.get("run-1:a:0")["channel"]
    plain = subject_of(run, packs, pool.trajectories, adopted=pool.rewards.all_adopted())
    own = subject_of(run, packs, pool.trajectories)
    assert own.about["rewards"] == "as the run gave them"
    assert [one.score for one in plain.trials] == [one.score for one in own.trials]
    assert plain.about["rewards"] == f"the newest reward in channel {channel}; 0 of 12 differ from the run's scores"

    new = {"run-1:a:0": 0.25, "run-1:a:3": 0.75}
    pool.labels.annotate(
        [
            Annotation(AnnotationKind.REWARD, value, "ann", "rescore:again", 1.0, trajectory_uid=uid)
            for uid, value in new.items()
        ]
    )
    version = pool.rewards.save("rescore-again", {"rule": "precedence", "sources": ["rescore:again", "complete"]})
    pool.rewards.adopt(channel, "rescore-again", version)
    subject = subject_of(run, packs, pool.trajectories, adopted=pool.rewards.all_adopted())
    assert [one.score for one in subject.trials[:5]] == [0.25, 0.0, 1.0, 0.75, 0.25]
    text = f"policy rescore-again@1 in channel {channel}; 2 of 12 differ from the run's scores"
    assert subject.about["rewards"] == text and f"rewards: {text}" in report_markdown(report(subject))
    made = report(subject, prices=Prices(1e6, 2e6))
    assert made["total"]["mean"]["value"] == pytest.approx((0.5 + 0.25) / 2)
    (first,) = [one for one in made["tasks"] if one["task"] == "a"]
    assert first["cost_usd"] == first["n_prompt_tokens"] + 2 * first["n_response_tokens"] == 4 * 8 + 2 * 8
    assert [one.score for one in subject_of(run, packs, pool.trajectories).trials[:4]] == SCORES["a"]
