from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.export import EXPORTERS, export
from core.types import Annotation, View
from tests.batch.keeping_all import SFT_ALL, keeping_all

from .conftest import T0, conversation, done

SFT = parse_recipe(SFT_ALL)


@pytest.fixture
def filled(pool):
    """Two chains, a fork, an untrained step in the middle, and steps without log-probs."""
    pool.steps.append(
        conversation("a", "A", [([1, 2], [3]), ([4], [5, 6]), ([7], [8])])
        + conversation("b", "A", [([1, 2], [3]), ([4], [9])], call_kind=lambda k: "retry" if k == 0 else "main")
        + conversation("c", "B", [([1], [2])], response_logprobs=None, token_source="retokenized")
        + conversation("d", "B", [([1, 2, 3], [4, 5])], response_logprobs=[None, -1.5]),
        completions=[*done("a", reward=1.0), *done("b", reward=0.0), *done("c"), *done("d")],
    )
    # The fork: a second continuation of a's first step, after the chain has gone on.
    (fork,) = conversation("a", "A", [([1, 2, 3, 4, 4], [6])], step_index=3, step_uid="a.fork", transition="forked")
    pool.steps.append([fork])
    return pool


def rows_of(result):
    return pq.read_table(result.path).to_pylist()


def test_one_row_per_step(filled, tmp_path):
    made = plan(filled, View(), SFT)
    result = export(made, filled, "trl_sft", tmp_path / "out")
    rows = rows_of(result)
    assert len(rows) == result.n_rows == len(made.step_uids)
    for uid, row in zip(made.step_uids, rows, strict=True):
        step = filled.steps.get(uid)
        prompt, response = list(step["prompt_ids"]), list(step["response_ids"])
        assert row == {"input_ids": prompt + response, "labels": [-100] * len(prompt) + response}
    assert result.n_tokens == sum(len(row["input_ids"]) for row in rows)


def test_merged_rows_repeat_no_context_and_keep_every_chosen_answer(filled, tmp_path):
    result = export(plan(filled, View(), SFT), filled, "trl_sft", tmp_path, merge="trajectory")
    n = -100
    assert sorted(rows_of(result), key=lambda row: row["input_ids"]) == [
        {"input_ids": [1, 2], "labels": [n, 2]},
        {"input_ids": [1, 2, 3, 4, 4, 6], "labels": [n, n, n, n, n, 6]},
        {"input_ids": [1, 2, 3, 4, 5], "labels": [n, n, n, 4, 5]},
        {"input_ids": [1, 2, 3, 4, 5, 6, 7, 8], "labels": [n, n, 3, n, 5, 6, n, 8]},
        {"input_ids": [1, 2, 3, 4, 9], "labels": [n, n, n, n, 9]},
    ]
    assert result.manifest["n_loss_tokens"] == plan(filled, View(), SFT).totals["n_loss_tokens"]


def test_steps_read_back_equal_to_the_pool(filled, tmp_path):
    from datasets import load_dataset

    recipe = parse_recipe({"algorithm": "dr_grpo", "token_sources": ["engine", "retokenized"]})
    filled.steps.append([], completions=[*done("c", reward=0.5), *done("d", reward=1.0)])
    made = plan(filled, View(), recipe)
    result = export(made, filled, "steps_parquet", tmp_path)
    rows = rows_of(result)
    advantage = {t.trajectory_uid: t.advantage for group in made.groups for t in group.trajectories}
    assert [row["step_uid"] for row in rows] == made.step_uids and len(rows) == 7
    for row in rows:
        step = filled.steps.get(row["step_uid"])
        for name in (
            "trajectory_uid", "prompt_uid", "step_index", "reward", "trajectory_reward", "policy_version",
            "policy_version_end", "token_source", "transition", "is_last", "finish_reason",
        ):  # fmt: skip
            assert row[name] == step[name], name
        assert row["prompt_ids"] == list(step["prompt_ids"])
        assert row["response_ids"] == list(step["response_ids"])
        assert row["response_mask"] == [1] * len(step["response_ids"])
        assert row["advantage"] == advantage[row["trajectory_uid"]]
        for name in ("messages", "response_message", "tools", "sampling", "metadata"):
            assert json.loads(row[name]) == step[name]
    by_uid = {row["step_uid"]: row for row in rows}
    assert by_uid["a.1"]["response_logprobs"] == [-0.125, -0.25]
    assert by_uid["c.0"]["response_logprobs"] is None, "unknown is null, never 0"
    assert by_uid["d.0"]["response_logprobs"] == [None, -1.5]
    again = load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path / "hf"))
    assert again.to_list() == rows


def test_manifest_says_what_the_file_is(filled, tmp_path):
    filled.labels.annotate([Annotation("quality", "bad", "me", "test", T0, trajectory_uid="c")])
    made = plan(filled, View(where="step_index < 9"), SFT)
    result = export(made, filled, "trl_sft", tmp_path, clock=lambda: 12.5)
    manifest = json.loads(result.manifest_path.read_bytes())
    assert manifest == result.manifest
    assert manifest["sha256"] == hashlib.sha256(result.path.read_bytes()).hexdigest()
    assert manifest["n_bytes"] == result.path.stat().st_size
    assert manifest["plan"] == {"uid": made.uid, "hash": made.hash}
    assert manifest["view"] == {"filters": {}, "where": "step_index < 9"}
    assert manifest["recipe"] == SFT.to_json()
    assert {r["reason"]: r["n_steps"] for r in manifest["excluded"]} == {"labelled_bad": 1, "not_trainable": 1}
    assert manifest["funnel"][0]["n_steps"] == 8 and manifest["counts"]["n_steps"] == 6 == manifest["n_rows"]
    assert manifest["tokenizers"] == {"hashes": ["tok-1"], "n_trajectories_read": 3}
    assert manifest["created_at"] == "1970-01-01T00:00:12.500000+00:00"
    assert set(manifest["versions"]) >= {"claw-studio", "pyarrow", "python"}


LOADS = {
    "trl_sft": ("sft", "input_ids"),
    "trl_grpo": ("dr_grpo", "num_rows: 2"),
    "trl_dpo": ("dpo", "rejected_ids"),
    "trl_kto": ("kto", "completion_ids"),
    "slime": ("dr_grpo", "4"),
    "prime_rl": ("dr_grpo", "1"),
    "areal": ("dr_grpo", "2"),
    "skyrl_sft": ("sft", "loss_mask"),
    "axolotl": ("sft", "labels"),
    "llama_factory": ("sft", "messages"),
    "openai_messages": ("sft", "7"),
    "packed_tree": ("dr_grpo", "1"),
    "group_trees": ("dr_grpo", "1"),
    "group_statistics": ("sft", "prompt_uid"),
    "steps_parquet": ("sft", "response_logprobs"),
}
"""Format -> an algorithm that it is made for, and what its load command prints."""


def test_every_format_is_loaded_here_or_by_its_trainer():
    assert EXPORTERS.keys() == LOADS.keys() | {"verl_rollout", "rllm", "tinker", "openrlhf", "clawgym_sft"}


@pytest.mark.parametrize("name", LOADS)
def test_the_load_command_works(filled, tmp_path, name):
    algorithm, printed = LOADS[name]
    view = View({"trajectory_uid": ["a", "b"]}, "step_uid <> 'a.fork'") if algorithm == "dr_grpo" else View()
    if algorithm == "dpo":
        filled.steps.append(
            conversation("e", "E", [([1], [2])]) + conversation("f", "E", [([1], [3])]),
            completions=[*done("e", reward=1.0), *done("f", reward=0.0)],
        )
        view = View({"prompt_uid": "E"})
    result = export(plan(filled, view, parse_recipe({**keeping_all(algorithm)})), filled, name, tmp_path)
    command = result.manifest["load_command"].replace("python ", f"'{sys.executable}' ", 1)
    ran = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert printed in ran.stdout


def test_a_cancelled_export_leaves_nothing_and_the_next_one_is_whole(filled, tmp_path):
    made = plan(filled, View(), SFT)

    def cancel(done_steps, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(made, filled, "trl_sft", tmp_path / "out", progress=cancel)
    assert list((tmp_path / "out").iterdir()) == []
    seen = []
    first = export(made, filled, "trl_sft", tmp_path / "out", progress=lambda *at: seen.append(at))
    assert seen[-1] == (7, 7)
    again = export(made, filled, "trl_sft", tmp_path / "out")
    assert again.manifest["sha256"] == first.manifest["sha256"]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_killed_export_leaves_no_half_file(filled, tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from core.export.base import atomic\n"
        "with atomic(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)\n"
    )
    target = tmp_path / "data.parquet"
    ran = subprocess.run([sys.executable, "-c", program, str(target)], timeout=60, check=False)
    assert ran.returncode == -9
    assert not target.exists()


def test_large_plans_are_written_in_bounded_row_groups(pool, tmp_path):
    size = 700_000
    for i in range(9):
        ids = np.arange(size, dtype=np.int32) + i
        pool.steps.append(conversation(f"t{i}", "A", [(ids, [1, 2])], messages=None), completions=done(f"t{i}"))
    recipe = parse_recipe({**SFT_ALL, "token_budget": size + 2})
    result = export(plan(pool, View(), recipe), pool, "trl_sft", tmp_path)
    file = pq.ParquetFile(result.path)
    assert file.num_row_groups == math.ceil(9 / 5)
    assert result.n_tokens == 9 * (size + 2)
    assert file.read_row_group(1).to_pydict()["input_ids"][3][:2] == [8, 9]


def test_refusals(filled, tmp_path):
    made = plan(filled, View(), SFT)
    with pytest.raises(InvalidInput) as caught:
        export(made, filled, "verl", tmp_path)
    assert caught.value.field == "format" and "trl_sft" in caught.value.hint
    with pytest.raises(InvalidInput) as caught:
        export(made, filled, "trl_sft", tmp_path, merge="all")
    assert caught.value.field == "options.merge"
    with pytest.raises(InvalidInput, match="no option"):
        export(made, filled, "steps_parquet", tmp_path, merge="step")
    with pytest.raises(InvalidInput) as caught:
        export(plan(filled, View(where="FALSE"), SFT), filled, "trl_sft", tmp_path)
    assert "no step matches" in caught.value.hint
    with pytest.raises(InvalidInput) as caught:
        export(plan(filled, View({"trajectory_uid": "c"}), parse_recipe({})), filled, "trl_sft", tmp_path)
    assert "reward" in caught.value.hint
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput) as caught:
        export(made, filled, "trl_sft", Path(tmp_path / "file"))
    assert caught.value.field == "out"


def test_a_finished_export_is_recognised_and_a_damaged_one_written_anew(filled, tmp_path):
    made = plan(filled, View(), SFT)
    first = export(made, filled, "trl_sft", tmp_path, clock=lambda: 1.0)
    again = export(plan(filled, View(), SFT), filled, "trl_sft", tmp_path, clock=lambda: 2.0)
    assert again.manifest == first.manifest
    good = first.path.read_bytes()
    first.path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    repaired = export(made, filled, "trl_sft", tmp_path, clock=lambda: 3.0)
    assert repaired.manifest["created_at"] != first.manifest["created_at"] and first.path.read_bytes() == good
    filled.labels.annotate([Annotation("quality", "bad", "me", "test", T0, trajectory_uid="d")])
    other = export(plan(filled, View(), SFT), filled, "trl_sft", tmp_path, clock=lambda: 4.0)
    assert other.path != first.path and other.n_rows < first.n_rows
