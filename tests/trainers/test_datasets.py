"""The own code of OpenRLHF, Axolotl, LLaMA-Factory, Tinker's cookbook, rLLM and prime-rl on our files.

They live in an environment that sees the project's packages and has these beside them, without what they would pull in
for GPUs and clusters (``.ci/run`` makes it; ``stub_packages.py`` is for the rest). rLLM and prime-rl are no packages
 in the versions that read these files: their sources are found by ``CLAW_UPSTREAM``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export import export
from core.serving.model import make_model
from core.types import View
from tests.export.conftest import conversation, done
from tests.export.uneven_pool import fill
from tests.left_out import missing

pytestmark = pytest.mark.trainers

PYTHON = Path(__file__).parents[2] / ".cache" / "trainers" / "datasets" / "bin" / "python"
PROGRAM = Path(__file__).with_name("in_datasets.py")
LF_CALL = {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a", "n": [1]}'}}


def source(name):
    """A checkout of a trainer that is no package."""
    root = Path(os.environ.get("CLAW_UPSTREAM", "/nonexistent")) / name
    if not root.exists():
        pytest.skip(f"{name}'s sources are not here, so its own reader was not run: CLAW_UPSTREAM names their folder")
    return str(root)


def run(trainer, path, **said):
    if not PYTHON.exists():
        missing("the trainers' data paths are not installed: .ci/run installs them into .cache/trainers/datasets")
    command = [PYTHON, PROGRAM, trainer, str(path), json.dumps(said)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def made(pool, algorithm, **recipe):
    return plan(pool, View(), parse_recipe({"algorithm": algorithm, **recipe}))


def tokens_of(planned, pool):
    """Sampled token -> (advantage, log-prob, temperature), straight from the plan's steps and the pool.

    Without those that begin a step of an empty prompt: nothing predicts them.
    """
    numbers = {}
    for row in planned.steps.to_pylist():
        step = pool.steps.get(row["step_uid"])
        each = row.get("token_advantages") or [row["advantage"]] * len(step["response_ids"])
        scores = step["response_logprobs"]
        scores = [None] * len(each) if scores is None else scores.tolist()
        temperature = step["sampling"].get("temperature")
        for token, advantage, score in zip(step["response_ids"].tolist(), each, scores, strict=True):
            numbers[token] = (advantage, score, temperature)
        if not len(step["prompt_ids"]):
            del numbers[step["response_ids"][0]]
    return numbers


def sequences_of(planned, pool, *, merge=False):
    chunks = training_rows(planned, pool.training, merge=merge)
    rows = [(chunk.ids[at].tolist(), chunk.loss[at]) for chunk in chunks for at in chunk.slices()]
    return sorted((ids, [token for token, on in zip(ids, loss, strict=True) if on]) for ids, loss in rows)


@pytest.mark.parametrize(("algorithm", "estimator"), [("grpo", "group_norm"), ("rloo", "rloo"), ("dr_grpo", "dr_grpo")])
def test_openrlhf_computes_the_plans_advantages_from_our_rewards(pool, tmp_path, algorithm, estimator):
    unbroken = View(where="trajectory_uid NOT IN ('m7.c', 'm7.d')")
    fill(pool, {"no_logprobs"})
    planned = plan(pool, unbroken, parse_recipe({"algorithm": algorithm, "n_rollouts": 2}))
    result = export(planned, pool, "openrlhf", tmp_path)
    assert {"what": "OpenRLHF computes advantages itself, from the rewards in the file",
            "flag": f"--algo.advantage.estimator {estimator}"} in result.manifest["differences"]  # fmt: skip
    rows = run("openrlhf", result.path, n_samples=2, max_len=64, estimator=estimator)
    tokens = tokens_of(planned, pool)
    assert sorted(token for row in rows for token in row["sampled"]) == sorted(tokens)
    assert len(rows) == result.n_rows == planned.counts["n_trajectories"]
    for row in rows:
        for token, advantage, score in zip(row["sampled"], row["advantages"], row["logprobs"], strict=True):
            assert (advantage, score) == pytest.approx(tokens[token][:2], abs=2e-5)
        gained = [-1.1051709 * a for a in row["advantages"]]
        assert row["loss"] == pytest.approx(sum(gained) / len(gained), rel=1e-4, abs=1e-6)
    assert {row["uid"]: row["truncated"] for row in rows}["m8.b"] is True
    assert sum(row["truncated"] for row in rows) == 1


def test_openrlhf_refuses_what_it_cannot_compare(pool, tmp_path):
    fill(pool, {"no_logprobs"})
    with pytest.raises(InvalidInput, match="groups of 2 to 4 trajectories"):
        export(made(pool, "grpo"), pool, "openrlhf", tmp_path)
    math = View(filters={"prompt_uid": "math:7"})
    with pytest.raises(InvalidInput, match=r"trajectory m7\.. is several rows"):
        export(plan(pool, math, parse_recipe({"algorithm": "grpo"})), pool, "openrlhf", tmp_path)
    one = View(filters={"prompt_uid": "code:1"})
    result = export(plan(pool, one, parse_recipe({"algorithm": "grpo"})), pool, "openrlhf", tmp_path)
    for options, words in (({"n_samples": 3, "max_len": 64}, "3 samples of prompt 'code:1' were requested"),
                        ({"n_samples": 2, "max_len": 5}, "would be cut at 5")):  # fmt: skip
        with pytest.raises(AssertionError, match=words):
            run("openrlhf", result.path, estimator="rloo", **options)


@pytest.mark.parametrize("merge", ["step", "trajectory"])
def test_axolotl_takes_the_rows_as_they_are(pool, tmp_path, merge):
    fill(pool)
    planned = made(pool, "sft")
    result = export(planned, pool, "axolotl", tmp_path, merge=merge)
    wanted = sequences_of(planned, pool, merge=merge == "trajectory")
    longest = max(len(ids) for ids, _ in wanted)
    report = run("axolotl", result.path, sequence_len=longest)
    rows = report["rows"]
    places = [place for rank in report["ranks"] for place in rank]
    assert set(places) == set(range(len(rows))) and len(places) == len(rows) + -len(rows) % 4
    assert "Axolotl trains on rows of the first batch again" in str(result.manifest["differences"])
    assert sorted((row["ids"], row["sampled"]) for row in rows) == wanted
    (cut,) = [one for one in result.manifest["differences"] if "sequence_len" in str(one["flag"])]
    assert str(longest) in cut["flag"]
    assert len(run("axolotl", result.path, sequence_len=longest - 1)["rows"]) < len(wanted), "as the manifest says"


def test_axolotl_trains_no_answer_of_weight_0(pool, tmp_path):
    """A consumer that heeds weights, as the manifest says, trains on the chosen answers only."""
    calls = [{"role": "assistant", "content": f"answer {k} of the agent"} for k in range(3)]
    history = [{"role": "user", "content": "task"}]
    steps = []
    for k, answer in enumerate(calls):
        (step,) = conversation(
            "a", "A", [([1 + k], [50 + k])], step_uid=f"a.{k}", step_index=k, messages=list(history), tools=None,
            response_message=answer, call_kind="retry" if k == 1 else "main", transition="extends" if k else None,
        )  # fmt: skip
        steps.append(step)
        history += [answer, {"role": "user", "content": f"result {k}"}]
    pool.steps.append(steps, completions=done("a", reward=1.0))
    result = export(made(pool, "sft"), pool, "openai_messages", tmp_path)
    model = make_model(tmp_path / "model", seed=3)
    (row,) = run("weights", result.path, tokenizer=str(model))
    assert [f"answer {k} of the agent" in row["text"] for k in range(3)] == [True, True, True]
    assert [f"answer {k} of the agent" in row["trained"] for k in range(3)] == [True, False, True]
    assert "task" not in row["trained"] and "weight: 0" in str(result.manifest["differences"])


def test_tinker_gets_the_cookbooks_datums(pool, tmp_path):
    fill(pool, {"no_logprobs", "empty_prompt"})
    planned = made(pool, "rloo")
    result = export(planned, pool, "tinker", tmp_path)
    trajectories = []
    for group in planned.groups:
        for one in group.trajectories:
            steps = [pool.steps.get(uid) for uid in one.step_uids]
            trajectories.append(
                {
                    "advantage": one.advantage,
                    "steps": [
                        {
                            "prompt_ids": step["prompt_ids"].tolist(),
                            "response_ids": step["response_ids"].tolist(),
                            "logprobs": step["response_logprobs"].tolist(),
                        }
                        for step in steps
                    ],
                }
            )
    report = run("tinker", result.path, trajectories=trajectories)
    assert len(report["ours"]) >= len(trajectories)
    by_input = sorted(report["ours"], key=lambda datum: datum["target_tokens"])
    for ours, theirs in zip(by_input, sorted(report["theirs"], key=lambda datum: datum["target_tokens"]), strict=True):
        assert ours["input"] == theirs["input"]
        assert ours["target_tokens"] == theirs["target_tokens"]
        assert ours["mask"] == theirs["mask"]
        for name in ("advantages", "logprobs"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6)


@pytest.mark.parametrize(("algorithm", "without"), [("turn_discount", ()), ("reinforce_plus_plus", ("no_logprobs",))])
def test_rllm_s_tinker_backend_trains_the_plan(pool, tmp_path, algorithm, without):
    """Its own datums: each sampled token once with the plan's numbers, but for trajectories that lack log-probs."""
    root = source("rllm")
    fill(pool, without)
    planned = made(pool, algorithm)
    result = export(planned, pool, "rllm", tmp_path)
    report = run("rllm", result.path, source=root)
    tokens = tokens_of(planned, pool)
    lost = {
        i for uid in planned.step_uids if uid.startswith("m7.c") for i in pool.steps.get(uid)["response_ids"].tolist()
    }
    wanted = set(tokens) - (set() if without else lost)
    assert sorted(token for row in report["rows"] for token in row["ids"]) == sorted(wanted)
    assert report["dropped"] == (0 if without else 1)
    assert ("1 steps have no log-probs" in str(result.manifest["differences"])) == (not without)
    for row in report["rows"]:
        assert row["context"]
        for token, advantage, score in zip(row["ids"], row["advantages"], row["logprobs"], strict=True):
            assert (advantage, score) == pytest.approx(tokens[token][:2], abs=1e-6)


@pytest.mark.parametrize("algorithm", ["rloo", "reinforce_plus_plus"])
def test_prime_rl_divides_each_token_by_its_own_temperature(pool, tmp_path, algorithm):
    root = source("prime-rl")
    fill(pool, {"no_logprobs", "greedy", "no_temperature"})
    planned = made(pool, algorithm, token_budget=64)
    result = export(planned, pool, "prime_rl", tmp_path)
    folder = tmp_path / "out" / "rollouts" / "step_0"
    folder.mkdir(parents=True)
    (folder / "rank_0.bin").write_bytes(result.path.read_bytes())
    rows = run("prime_rl", tmp_path / "out", source=root)
    tokens = tokens_of(planned, pool)
    seen, mixed = [], 0
    for row in rows:
        assert row["position_ids"] == list(range(len(row["input_ids"])))
        inside = [i for i, on in enumerate(row["loss_mask"]) if on]
        mixed += len({row["temperatures"][i] for i in inside}) > 1
        loss = 0.0
        for i in inside:
            token = row["input_ids"][i]
            advantage, score, temperature = tokens[token]
            exported = row["advantages"][i], row["inference_logprobs"][i], row["temperatures"][i]
            assert exported == pytest.approx((advantage, score, temperature), abs=1e-6)
            if i:
                assert row["temperatures"][i - 1] == pytest.approx(temperature) or row["loss_mask"][i - 1]
            seen.append(token)
            before = min(score, 0.0)
            moved = 2.718281828 ** (before + 0.01) - 2.718281828**before
            loss -= 0.0 if (advantage > 0 and moved > 0.2) else advantage * 1.0100502
        assert row["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert sorted(seen) == sorted(tokens)
    assert mixed, "a merged row holds steps of two temperatures"


@pytest.mark.parametrize(("kept", "words"), [("greedy", "at temperature 0"), ("no_temperature", "at an unknown one")])
def test_prime_rl_is_not_given_a_temperature_to_divide_by(pool, tmp_path, kept, words):
    fill(pool, {"no_logprobs", "greedy", "no_temperature"} - {kept})
    with pytest.raises(InvalidInput, match=words):
        export(made(pool, "rloo"), pool, "prime_rl", tmp_path)
    assert export(made(pool, "rloo", temperature=1.0), pool, "prime_rl", tmp_path).n_rows


def test_llama_factory_renders_every_text_and_call_once(pool, tmp_path):
    history = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "read it"}]},
        {"role": "assistant", "content": "I look into it.", "tool_calls": [LF_CALL, LF_CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "words"},
        {"role": "tool", "tool_call_id": "1", "content": "more words"},
    ]
    answer = {"role": "assistant", "content": "it says words", "reasoning_content": "simple"}
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    silent = [*history, {"role": "user", "content": "and?"}]
    steps = [
        *conversation("a", "A", [([1], [2])], messages=history[:2], response_message=history[2], tools=tools),
        *conversation("b", "A", [([1], [3])], messages=history, response_message=answer, tools=tools),
        *conversation("c", "A", [([1], [4])], messages=history[1:2], response_message=answer, tools=None),
        *conversation("d", "A", [([1], [5])], messages=silent, response_message=answer, tools=tools),
    ]
    pool.steps.append(steps, completions=done("a", "b", "c", "d", reward=1.0))
    result = export(made(pool, "sft"), pool, "llama_factory", tmp_path / "lf")
    model = make_model(tmp_path / "model", seed=3)
    report = run("llama_factory", result.path, template="qwen", tokenizer=str(model))
    one, two, three = report["rows"]
    assert report["ranks"] == [[0, 2], [1, 0]], "two ranks: the first row is there again"
    assert "LLaMA-Factory trains on rows of the first batch again" in str(result.manifest["differences"])
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a", "n": [1]}}\n</tool_call>'
    assert one["trained"].count(call) == 2
    assert "I look into it." in one["trained"]
    assert one["system"] == "be brief"
    assert "I look into it." in two["text"]
    assert two["text"].count(call) == 2
    assert two["trained"].startswith("<think>\nsimple\n</think>")
    assert "it says words" in two["trained"]
    assert "I look into it." not in two["trained"]
    assert "words" in two["text"]
    assert "more words" in two["text"]
    assert "detailed thinking" not in one["text"] + two["text"] + three["text"]
    assert three["system"] == ""
    assert "1 steps are in no loss: questions and answers don't take turns" in str(result.manifest["differences"])
    assert result.manifest["n_loss_tokens"] == 3
