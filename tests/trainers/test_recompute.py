"""Trainers that compute advantages themselves, by their own code, on a pool that is hard on them: they train the plan.

Every sampled token of the pool is another id, so what a trainer does to a token is compared with what the plan says of
it, whatever rows and groups the trainer makes.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.export import export
from core.pool import Pool
from core.types import Annotation, View
from tests.batch.keeping_all import keeping_all
from tests.export.uneven_pool import T0, attempts, fill, uneven_steps

from .running import run, upstream

pytestmark = pytest.mark.trainers

CLOSE = {"rel": 1e-5, "abs": 1e-6}


@pytest.fixture
def pool(tmp_path):
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 10_000)
    yield opened
    opened.close()


def planned(pool: Pool, algorithm: str = "grpo", where: str = "", **recipe: Any) -> Plan:
    return plan(pool, View(where=where), parse_recipe({**keeping_all(algorithm), **recipe}))


def tokens(made: Plan, pool: Pool) -> dict[int, tuple[float, float | None, int | None]]:
    """Each sampled token that can be trained on -> advantage, log-prob, policy version, from the plan and the pool."""
    numbers = {}
    by_token = made.steps["token_advantages"].to_pylist() if made.level == "token" else [None] * len(made.steps)
    for uid, advantage, own in zip(made.step_uids, made.steps["advantage"].to_pylist(), by_token, strict=True):
        step = pool.steps.get(uid)
        ids = list(step["response_ids"])
        scores = step["response_logprobs"]
        for k, token in enumerate(ids):
            if k or len(step["prompt_ids"]):
                score = None if scores is None else float(scores[k])
                numbers[token] = (advantage if own is None else own[k], score, step["policy_version"])
    return numbers


def same(rows: list[dict[str, Any]], wanted: dict[int, Any], *, logprobs: bool = True, versions: bool = False) -> None:
    """What a trainer made of each token is what the plan says, each token once."""
    seen = Counter(token for row in rows for token in row["ids"])
    assert seen.keys() == wanted.keys() and set(seen.values()) == {1}
    for row in rows:
        assert row["advantages"] == pytest.approx([wanted[token][0] for token in row["ids"]], **CLOSE)
        if logprobs:
            assert row["logprobs"] == pytest.approx([wanted[token][1] for token in row["ids"]], **CLOSE)
        if versions:
            assert row["versions"] == [wanted[token][2] for token in row["ids"]]


def differences(result: Any) -> str:
    return json.dumps(result.manifest["differences"])


# verl


def in_verl(result: Any, tmp_path: Path, estimator: str, g: int, n: int, **environment: str) -> dict[str, Any]:
    folder = tmp_path / "dump" / "exp_proj" / f"GBS{g}_N{n}_in64_out64" / "1"
    folder.mkdir(parents=True)
    shutil.copy(result.path, folder / "gen_batch.dp")
    (folder / "meta.json").write_text(json.dumps({"global_steps": 1}))
    config = {
        "trainer": {"experiment_name": "exp", "project_name": "proj"},
        "actor_rollout_ref": {"rollout": {"n": n}},
        "data": {"train_batch_size": g, "max_prompt_length": 64, "max_response_length": 64},
        "estimator": estimator,
    }
    return run("in_verl.py", "verl", tmp_path / "dump", json.dumps(config), **environment)


@pytest.mark.parametrize(
    ("algorithm", "options", "merge"),
    [
        ("grpo", {}, "trajectory"),
        ("turn_discount", {"discount": 0.5}, "step"),
        ("reinforce_plus_plus", {"gamma": 0.5}, "trajectory"),
    ],
)
def test_verl_trains_the_plan_s_advantages(pool, tmp_path, algorithm, options, merge):
    """Groups of any size, several rows a trajectory, forks, advantages by token: with the estimator beside the file."""
    fill(pool)
    made = planned(pool, algorithm, options=options)
    result = export(made, pool, "verl_rollout", tmp_path / "out", merge=merge)
    path = {"PYTHONPATH": str(tmp_path / "out"), "VERL_USE_EXTERNAL_MODULES": "verl_advantages"}
    report = in_verl(result, tmp_path, "planned", result.n_rows, 1, **path)
    wanted = tokens(made, pool)
    same(report["rows"], wanted, logprobs=False)
    assert {row for rank in report["ranks"] for row in rank} == set(range(result.n_rows))
    assert sum(map(len, report["ranks"])) == result.n_rows + report["n_pad"] and report["n_pad"] == result.n_rows % 2
    assert report["loss"] is None and "log-probs of some steps are unknown" in differences(result)
    assert f"data.train_batch_size={result.n_rows} actor_rollout_ref.rollout.n=1" in differences(result)
    assert "temperatures 0, 0.7, 1, unknown" in differences(result) and "no prompt" in differences(result)


def test_verl_s_loss_is_the_plan_s(pool, tmp_path):
    fill(pool, without=("no_logprobs",))
    made = planned(pool)
    result = export(made, pool, "verl_rollout", tmp_path / "out", merge="trajectory")
    path = {"PYTHONPATH": str(tmp_path / "out"), "VERL_USE_EXTERNAL_MODULES": "verl_advantages"}
    report = in_verl(result, tmp_path, "planned", result.n_rows, 1, **path)
    wanted = tokens(made, pool)
    same(report["rows"], wanted)
    assert report["loss"] == pytest.approx(-1.1 * np.mean([advantage for advantage, *_ in wanted.values()]), rel=1e-4)


def test_verl_s_own_grpo_is_the_plan_s_where_rows_and_groups_are_even(pool, tmp_path):
    fill(pool)
    even = planned(pool, where="step_uid NOT IN ('m7.c.2', 'm7.d.2', 'm7.c.1')", n_rollouts=3, batch_size=1)
    result = export(even, pool, "verl_rollout", tmp_path / "out", merge="trajectory", rewards="trajectory")
    report = in_verl(result, tmp_path, "grpo", 1, 3)
    same(report["rows"], tokens(even, pool))
    with pytest.raises(InvalidInput, match="a row for a sample"):
        export(planned(pool), pool, "verl_rollout", tmp_path / "out", merge="trajectory", rewards="trajectory")
    with pytest.raises(InvalidInput, match="a row for a sample"):
        export(even, pool, "verl_rollout", tmp_path / "out", merge="step", rewards="trajectory")


def theirs(name: str, tmp_path: Path) -> Path:
    """The file of estimators of Agent-R1 or StepPO."""
    if name == "Agent-R1":
        return upstream("Agent-R1") / "agent_r1" / "trainer" / "ppo" / "core_algos.py"
    folder = upstream("StepPO", "AgentR1+StepPO")
    if (folder / "arft").is_dir():
        return folder / "arft" / "core_algos.py"
    shown = subprocess.run(
        ["git", f"--git-dir={folder / 'repo'}", "show", "HEAD:arft/core_algos.py"], capture_output=True, check=True
    )
    path = tmp_path / "core_algos.py"
    path.write_bytes(shown.stdout)
    return path


STEPPED = [
    ("Agent-R1", "grpo", {}, "compute_grpo_outcome_advantage", {}),
    ("Agent-R1", "dr_grpo", {}, "compute_grpo_outcome_advantage", {"norm_adv_by_std_in_grpo": False}),
    ("StepPO", "grpo", {}, "compute_grpo_outcome_advantage", {}),
    ("StepPO", "rloo", {}, "compute_rloo_outcome_advantage", {}),
    ("StepPO", "reinforce_plus_plus_baseline", {}, "compute_reinforce_plus_plus_baseline_outcome_advantage", {}),
    (
        "StepPO", "reinforce_plus_plus", {"gamma": 0.9, "chain": "step"},
        "compute_reinforce_plus_plus_outcome_advantage", {"gamma": 0.9},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "algorithm", "options", "function", "given"), STEPPED)
@pytest.mark.parametrize("merge", ["step", "trajectory"])
def test_descendants_that_add_up_rows_train_the_plan(pool, tmp_path, name, algorithm, options, function, given, merge):
    """Several rows a trajectory: each carries its own part of the reward; their sum is the trajectory's."""
    # REINFORCE++ whitens over tokens, and the plan's whitening counts a first token that no file can train on.
    bare = ("empty_prompt",) if algorithm == "reinforce_plus_plus" else ()
    fill(pool, without=("singleton", *bare))
    made = planned(pool, algorithm, options=options)
    result = export(made, pool, "verl_rollout", tmp_path / "out", merge=merge, rewards="step")
    config = {"source": str(theirs(name, tmp_path)), "function": function, "options": given}
    report = run("in_verl.py", "descendant", result.path, json.dumps(config))
    wanted = tokens(made, pool)
    if merge == "trajectory" and algorithm == "reinforce_plus_plus":
        return  # a merged row is one return there; the manifest says that their estimator decides
    for row in report["rows"]:
        assert row["advantages"] == pytest.approx([wanted[token][0] for token in row["ids"]], rel=1e-4, abs=1e-4)
    assert "estimator decides" in differences(result)


def valued(pool: Pool, without: tuple[str, ...]) -> dict[str, list[float]]:
    """The uneven pool with a critic's values and what each step saw in its metadata. Step uid -> value by token."""
    rng = np.random.default_rng(7)
    values, steps = {}, []
    for step in uneven_steps(without):
        token_values = values[step.step_uid] = rng.normal(size=len(step.response_ids or ())).round(3).tolist()
        seen = f"the room {'north' if step.step_index else 'south'} of {step.policy_version}"
        metadata = {"value": token_values[0], "token_values": token_values, "anchor": seen}
        steps.append(replace(step, metadata=metadata))
    ends = [{"kind": "complete", "trajectory_uid": one.uid, "reward": one.reward} for one in attempts(without)]
    pool.steps.append(steps, completions=ends)
    return values


GAE = ("compute_gae_advantage_return", {"gamma": 0.9, "lam": 0.8})
TOKEN_GAE = ("compute_token_gae_advantage_return", {"gamma": 0.9, "lam": 0.8})


@pytest.mark.parametrize(
    ("name", "algorithm", "function"),
    [("Agent-R1", "step_gae", GAE), ("StepPO", "step_gae", GAE), ("Agent-R1", "token_gae", TOKEN_GAE),
     ("StepPO", "token_gae", TOKEN_GAE)],
)  # fmt: skip
def test_descendants_gae_of_the_same_values_is_the_plan_s(pool, tmp_path, name, algorithm, function):
    """Their critic's values come from their critic, not from a file: given the plan's, their GAE is the plan's."""
    values = valued(pool, ("singleton", "empty_prompt", "unscored"))
    made = planned(pool, algorithm, where="step_uid != 'm7.d.2'", options={"gamma": 0.9, "lam": 0.8})
    assert {"m7.b.0", "m8.a.1", "c1.a.1"} <= set(made.step_uids)
    result = export(made, pool, "verl_rollout", tmp_path / "out", rewards="step")
    config = {"source": str(theirs(name, tmp_path)), "function": function[0], "options": function[1], "values": values}
    report = run("in_verl.py", "descendant", result.path, json.dumps(config))
    wanted = tokens(made, pool)
    assert {token for row in report["rows"] for token in row["ids"]} == wanted.keys()
    for row in report["rows"]:
        assert row["advantages"] == pytest.approx([wanted[token][0] for token in row["ids"]], rel=1e-4, abs=1e-4)
    assert "algorithm.gamma=0.9 algorithm.lam=0.8" in differences(result)


@pytest.mark.parametrize("options", [{}, {"mode": "mean_norm", "w": 0.5, "gamma": 0.8}, {"similarity": 0.95}])
def test_step_po_s_gigpo_is_the_plan_s(pool, tmp_path, options):
    """``anchor_obs`` holds the plan's step groups; a step that the plan leaves out makes no gap between others."""
    valued(pool, ("singleton", "excluded_reward"))
    made = planned(pool, "gigpo", where="step_uid != 'm7.d.2'", options=options)
    assert "m7.a.1" not in made.step_uids and "m7.a.2" in made.step_uids
    result = export(made, pool, "verl_rollout", tmp_path / "out", rewards="step")
    given = {"gamma": 0.95, "w": 1.0, "mode": "mean_std_norm"} | options
    config = {
        "source": str(theirs("StepPO", tmp_path)), "function": "compute_gigpo_outcome_advantage",
        "gamma": given["gamma"], "options": {"step_advantage_w": given["w"], "mode": given["mode"]},
    }  # fmt: skip
    report = run("in_verl.py", "descendant", result.path, json.dumps(config))
    wanted = tokens(made, pool)
    for row in report["rows"]:
        assert row["advantages"] == pytest.approx([wanted[token][0] for token in row["ids"]], rel=1e-4, abs=1e-4)
    flags = f"algorithm.gamma={given['gamma']} ++algorithm.gigpo.step_advantage_w={given['w']}"
    assert flags in differences(result) and "enable_similarity=false" in differences(result)
    assert b"the room" not in result.path.read_bytes()
    assert "the rows' sum" not in differences(result)
    pool.labels.annotate([Annotation("reward", 0.5, "me", "human", T0 + 9000, step_uid="m7.a.1")])
    again = export(planned(pool, "gigpo", options=options), pool, "verl_rollout", tmp_path / "out", rewards="step")
    assert "2 trajectories earned rewards on steps that are left out, or fork" in differences(again)
    with pytest.raises(InvalidInput, match="its steps have several states"):
        export(made, pool, "verl_rollout", tmp_path / "out", rewards="step", merge="trajectory")


# slime


PLAN_FLAGS = {"reward_key": "advantage", "rewards_normalization": False, "advantage_estimator": "grpo"}
OWN_FLAGS = {"reward_key": None, "rewards_normalization": True, "advantage_estimator": "grpo"}


def in_slime(result: Any, flags: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """What each of two ranks trains on, of updates of ``n`` rollouts."""
    given = json.dumps({**flags, "global_batch_size": n})
    ranks: list[dict[str, Any]] = run("in_slime.py", upstream("slime"), result.path, given)["ranks"]
    return ranks


@pytest.mark.parametrize(("algorithm", "merge"), [("grpo", "trajectory"), ("turn_discount", "step")])
def test_slime_trains_the_plan(pool, tmp_path, algorithm, merge):
    """slime deals the samples to two ranks; their losses are means over trajectories of means over tokens."""
    fill(pool, without=("no_logprobs",))
    made = planned(pool, algorithm)
    result = export(made, pool, "slime", tmp_path / "out", merge=merge)
    assert "--reward-key advantage --disable-rewards-normalization" in differences(result)
    n = len(made.trajectories)
    assert f"--global-batch-size {n}" in differences(result)
    ranks = in_slime(result, PLAN_FLAGS, n)
    rows = [row for rank in ranks for row in rank["rows"]]
    wanted = tokens(made, pool)
    same(rows, wanted)
    sums, gains = Counter(), Counter()
    for row in rows:
        assert row["n_context"] > 0
        sums[row["rollout_id"]] += len(row["ids"])
        gains[row["rollout_id"]] += sum(wanted[token][0] for token in row["ids"])
    assert all(row["rollout_mask_sum"] == sums[row["rollout_id"]] for row in rows)
    assert len(sums) == n, "a trajectory counts once however many rows it has"
    for rank in ranks:
        shares = [wanted[token][0] / sums[row["rollout_id"]] for row in rank["rows"] for token in row["ids"]]
        assert rank["gradients"] == [pytest.approx(2 * -1.1 * sum(shares) / n, **CLOSE)]
    over_ranks = np.mean([rank["gradients"] for rank in ranks])
    assert over_ranks == pytest.approx(-1.1 * np.mean([gains[one] / sums[one] for one in sums]), **CLOSE)
    by_uid = dict(
        zip(made.trajectories["trajectory_uid"].to_pylist(), made.trajectories["reward"].to_pylist(), strict=True)
    )
    assert {row["rollout_id"]: row["raw_reward"] for row in rows} == dict(enumerate(by_uid.values()))
    assert sum(row["truncated"] for row in rows) == 1
    if merge == "trajectory":
        assert ["3", "4", "5"] in [row["weight_versions"] for row in rows]


def test_slime_refuses_the_plan_s_file_without_its_flag(pool, tmp_path):
    fill(pool)
    result = export(planned(pool), pool, "slime", tmp_path / "out")
    assert "log-probs of some steps are unknown" in differences(result)
    with pytest.raises(AssertionError, match="TypeError"):
        in_slime(result, OWN_FLAGS, 4)


def test_slime_s_own_groups_and_updates_are_announced(pool, tmp_path):
    """Its own normalisation turns signs, updates of 5 rollouts drop what is over: both as the manifest says."""
    fill(pool, without=("no_logprobs",))
    uneven = planned(pool)
    result = export(uneven, pool, "slime", tmp_path / "out", merge="trajectory", credit="trainer")
    wanted = tokens(uneven, pool)
    ranks = in_slime(result, OWN_FLAGS, 5)
    rows = [row for rank in ranks for row in rank["rows"]]
    flipped = [
        token for row in rows for token, value in zip(row["ids"], row["advantages"], strict=True)
        if math.copysign(1, value) != math.copysign(1, wanted[token][0])
    ]  # fmt: skip
    assert flipped and "normalises rewards over the whole batch" in differences(result)
    n = len(uneven.trajectories)
    assert len({row["rollout_id"] for row in rows}) == n - n % 5 < n and len(ranks[0]["gradients"]) == n // 5
    assert "drops" in differences(result) and f"--global-batch-size {n}" in differences(result)


def test_one_number_a_row_refuses_advantages_that_differ_within_a_row(pool, tmp_path):
    fill(pool, without=("no_version", "no_logprobs"))
    for name in ("slime", "areal"):
        for algorithm, options in (("turn_discount", {"discount": 0.5}), ("reinforce_plus_plus", {"gamma": 0.5})):
            with pytest.raises(InvalidInput, match="one number per row"):
                export(planned(pool, algorithm, options=options), pool, name, tmp_path / "out", merge="trajectory")


# AReaL


AS_PLANNED = {"reward_norm": None, "reward_bias": 0.0, "reward_scaling": 1.0, "reward_clip": 1e9, "kl_ctl": 0.0}
AREAL = {"package": "areal"}


@pytest.mark.parametrize(("algorithm", "merge"), [("grpo", "trajectory"), ("turn_discount", "step")])
def test_areal_trains_the_plan(pool, tmp_path, algorithm, merge):
    """Its controller deals the rows to two processes, and their update has the gradient of the plan's loss."""
    fill(pool, without=("no_logprobs", "no_version"))
    made = planned(pool, algorithm)
    result = export(made, pool, "areal", tmp_path / "out", merge=merge)
    given = json.dumps({**AS_PLANNED, "n_ranks": 2})
    report = run("in_areal.py", upstream("AReaL", **AREAL), result.path, given)
    rows, wanted = [row for rank in report["ranks"] for row in rank["rows"]], tokens(made, pool)
    same(rows, wanted, versions=True)
    assert any(len(set(row["versions"])) > 1 for row in rows) == (merge == "trajectory")
    mean = np.mean([wanted[token][0] for row in rows for token in row["ids"]])
    for rank in report["ranks"]:
        assert len(rank["rows"]) == result.n_rows / 2
        (step,) = rank["steps"]
        assert step["gradient"] == pytest.approx(-1.1 * mean, rel=1e-4) and step["n_micro_batches"] > 1
    assert "actor.reward_norm=null" in differences(result) and "actor.ppo_n_minibatches=1" in differences(result)
    assert f"{result.n_rows} rows" in differences(result) and "divisible" in report["refused"]


def test_areal_s_own_groups_are_announced(pool, tmp_path):
    fill(pool, without=("no_logprobs", "no_version"))
    made = planned(pool)
    result = export(made, pool, "areal", tmp_path / "out", merge="trajectory", credit="trainer")
    own = {**AS_PLANNED, "reward_norm": {"mean_level": "group", "std_level": "group", "group_size": 2}}
    rows = run("in_areal.py", upstream("AReaL", **AREAL), result.path, json.dumps(own))["rows"]
    wanted = tokens(made, pool)
    pairs = [(a, wanted[t][0]) for row in rows for t, a in zip(row["ids"], row["advantages"], strict=True)]
    assert any(abs(a - b) > 0.5 for a, b in pairs) and "group_size rows, one after another" in differences(result)


def test_areal_needs_what_it_cannot_do_without(pool, tmp_path):
    fill(pool)
    with pytest.raises(InvalidInput, match="policy version is unknown"):
        export(planned(pool), pool, "areal", tmp_path)
    with pytest.raises(InvalidInput, match="log-probs of a step are unknown"):
        export(planned(pool, where="policy_version IS NOT NULL"), pool, "areal", tmp_path)


# rLLM


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("grpo", {}), ("turn_discount", {"discount": 0.5}), ("reinforce_plus_plus", {"gamma": 0.5})],
)
def test_rllm_trains_the_plan(pool, tmp_path, algorithm, options):
    fill(pool)
    made = planned(pool, algorithm, options=options)
    result = export(made, pool, "rllm", tmp_path / "out")
    flags = {"use_precomputed_advantage": True}
    rows = run("in_rllm.py", upstream("rllm"), result.path, json.dumps(flags))["rows"]
    wanted = tokens(made, pool)
    same(rows, wanted, logprobs=False, versions=True)
    assert sum(len(row["ids"]) for row in rows) == result.manifest["n_loss_tokens"]
    assert all(row["n_context"] for row in rows) and "no prompt" in differences(result)
    for row in rows:
        if row["logprobs"] is not None:
            assert row["logprobs"] == pytest.approx([wanted[token][1] for token in row["ids"]], **CLOSE)
    assert sum(row["logprobs"] is None for row in rows) == 1, "a step without log-probs takes none from the others"
    groups = {row["group"] for row in rows}
    assert len(groups) == made.n_groups, "math:7 and math:8 are two groups"
    assert "use_precomputed_advantage=true" in differences(result)


def test_rllm_s_verl_backend_fails_on_the_plan_s_advantages(pool, tmp_path):
    fill(pool)
    result = export(planned(pool), pool, "rllm", tmp_path / "out")
    flags = {"use_precomputed_advantage": True, "backend": "verl"}
    with pytest.raises(AssertionError, match="TypeError"):
        run("in_rllm.py", upstream("rllm"), result.path, json.dumps(flags))
    assert "verl backend ends with a TypeError" in differences(result) and "Tinker backend" in differences(result)


def test_rllm_s_own_grpo_is_announced(pool, tmp_path):
    """Without the flag it computes with ddof 0: what the manifest says. With a recipe of ddof 0 it is the plan's.

    So is the batch of its verl backend: no step left out, one row as far as a sequence goes on.
    """
    fill(pool, without=("singleton", "no_logprobs"))
    made = planned(pool, options={"ddof": 0})
    result = export(made, pool, "rllm", tmp_path / "out")
    flags = {"use_precomputed_advantage": False, "backend": "verl"}
    report = run("in_rllm.py", upstream("rllm"), result.path, json.dumps(flags))
    wanted = tokens(made, pool)
    for row in [*report["rows"], *report["batch"]]:
        assert row["advantages"] == pytest.approx([wanted[token][0] for token in row["ids"]], rel=1e-4, abs=1e-4)
        assert row["logprobs"] == pytest.approx([wanted[token][1] for token in row["ids"]], **CLOSE)
    assert Counter(token for row in report["batch"] for token in row["ids"]) == Counter(wanted.keys())
    assert all(row["n_context"] for row in report["batch"])
    assert {row["trajectory"] for row in report["batch"]} == set(made.trajectories["trajectory_uid"].to_pylist())
    assert "ddof 0" in differences(result)


def test_rllm_s_verl_backend_hides_tokens_with_the_pad_token_s_id(pool, tmp_path):
    """As the manifest says: a sampled token with that id is in the loss, and no token attends to it."""
    fill(pool, without=("singleton", "no_logprobs"))
    made = planned(pool, options={"ddof": 0})
    result = export(made, pool, "rllm", tmp_path / "out")
    pad = int(min(tokens(made, pool)))
    flags = {"use_precomputed_advantage": False, "backend": "verl", "pad": pad}
    batch = run("in_rllm.py", upstream("rllm"), result.path, json.dumps(flags))["batch"]
    assert [token for row in batch for token in row["hidden"]] == [pad]
    assert "pad token" in differences(result)


# SkyRL


def test_skyrl_s_batch_holds_each_row_once_on_two_ranks(pool, tmp_path):
    """Its collator aligns masks to the end of sequences, and its model reads the log-prob before each masked token."""
    fill(pool)
    made = planned(pool, "sft")
    results = [export(made, pool, "skyrl_sft", tmp_path / "out", merge=merge) for merge in ("step", "trajectory")]
    reports: Any = run("in_skyrl.py", upstream("SkyRL"), *(result.path for result in results))
    ends = {
        (*map(int, step["prompt_ids"]), *map(int, step["response_ids"])) for step in map(pool.steps.get, made.step_uids)
    }
    for result, report in zip(results, reports, strict=True):
        rows = [row for rank in report["ranks"] for row in rank]
        real = [row for row in rows if row["sampled"]]
        assert report["n"] == len(real) == result.n_rows < len(rows) and len(report["ranks"]) == 2
        sampled = Counter(token for row in real for token in row["sampled"])
        assert sampled == Counter(tokens(made, pool).keys()), "each sampled token that something predicts, once"
        assert sum(sampled.values()) == result.manifest["n_loss_tokens"] and "no prompt" in differences(result)
        assert all(row["predicted"] for row in real) and {tuple(row["ids"]) for row in real} <= ends
