"""Trainers' own code on our files: what they train on is what was captured."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export import export
from core.serving.model import make_model
from core.types import View
from tests.batch.keeping_all import keeping_all

from .conftest import conversation, done
from .uneven_pool import HARD, fill

FIRST = [300, 301, 302]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), seed=3)


@pytest.fixture
def filled(pool):
    """Two groups of two rollouts: two turns with a tool's words between, and one turn."""
    pool.steps.append(
        conversation("a", "A", [(FIRST, [310, 311]), ([320], [312])])
        + conversation("b", "A", [(FIRST, [313])])
        + conversation("c", "B", [([400, 401], [314, 315])])
        + conversation("d", "B", [([400, 401], [316]), ([321, 322], [317, 318])]),
        completions=[*done("a", reward=1.0), *done("b", reward=0.25), *done("c", reward=0.0), *done("d", reward=0.5)],
    )
    return pool


def made(pool, algorithm, **recipe):
    return plan(pool, View(), parse_recipe({**keeping_all(algorithm), **recipe}))


def config_of(kind, tmp_path, **fields):
    return kind(
        output_dir=str(tmp_path / "run"),
        max_steps=1,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        **fields,
    )


def test_rows_hold_each_response_once_with_its_own_numbers(filled):
    for merge, wanted in ((False, ["a.0", "a.1", "b.0", "c.0", "d.0", "d.1"]), (True, ["a.1", "b.0", "c.0", "d.1"])):
        planned = made(filled, "reinforce_plus_plus", options={"gamma": 0.5})
        (rows,) = training_rows(planned, filled.training, merge=merge)
        assert [planned.step_uids[i] for i in rows.last_step] == wanted
        token_advantages = {
            uid: values
            for uid, values in zip(planned.step_uids, planned.steps["token_advantages"].to_pylist(), strict=True)
        }
        for i, at in enumerate(rows.slices()):
            step = filled.steps.get(planned.step_uids[rows.last_step[i]])
            assert rows.ids[at].tolist() == [*step["prompt_ids"], *step["response_ids"]]
            inside = planned.step_uids[rows.first_step[i] : rows.last_step[i] + 1]
            sampled = [(t, p) for uid in inside for t, p in zip(*response(filled, uid), strict=True)]
            trained = rows.ids[at][rows.loss[at]].tolist(), rows.logprobs[at][rows.loss[at]].tolist()
            assert list(zip(*trained, strict=True)) == sampled
            expected = [value for uid in inside for value in token_advantages[uid]]
            assert rows.advantages[at][rows.loss[at]].tolist() == pytest.approx(expected, rel=1e-6)
            assert np.isnan(rows.advantages[at][~rows.loss[at]]).all()


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.5], ids=["by step", "by token"])
def test_rows_know_where_each_step_s_response_stands(pool, merge, gamma):
    fill(pool)
    planned = made(pool, "reinforce_plus_plus", options={"gamma": gamma})
    n_steps = 0
    for rows in training_rows(planned, pool.training, merge=merge):
        versions = planned.steps["policy_version"].to_numpy(zero_copy_only=False)
        by_token = rows.by_token(np.nan_to_num(versions, nan=-2).astype(np.int32), -1)
        assert (by_token[~rows.loss] == -1).all()
        for place, begin, row in zip(rows.steps, rows.begins, rows.row_of_step, strict=True):
            step, at = pool.steps.get(planned.step_uids[place]), rows.slices()
            inside = list(at)[row]
            answer = list(step["response_ids"])
            assert rows.ids[begin : begin + len(answer)].tolist() == answer
            assert inside.start <= begin < inside.stop
            wanted = -2 if step["policy_version"] is None else step["policy_version"]
            assert set(by_token[begin : begin + len(answer)].tolist()) == {wanted}
            n_steps += 1
    assert n_steps == len(planned.steps)


def response(pool, uid):
    step = pool.steps.get(uid)
    return list(step["response_ids"]), [float(np.float32(p)) for p in step["response_logprobs"]]


def program_beside(path, name):
    spec = importlib.util.spec_from_file_location(name, path.parent / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def logps(model, prompt, answer, mask):
    """Log-probs of the sampled tokens behind a prompt, added up."""
    import torch

    ids = [*prompt, *answer]
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], dim=-1)
    return sum(scores[len(prompt) + i - 1, ids[len(prompt) + i]].item() for i, on in enumerate(mask) if on)


def test_dpo_trainer_counts_sampled_tokens_only(filled, tmp_path, model_dir):
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig

    result = export(made(filled, "dpo"), filled, "trl_dpo", tmp_path)
    rows = pq.read_table(result.path).to_pylist()
    assert rows == [
        {
            "prompt_ids": FIRST, "chosen_ids": [310, 311, 320, 312], "chosen_mask": [1, 1, 0, 1],
            "rejected_ids": [313], "rejected_mask": [1], "margin": 0.75,
        },
        {
            "prompt_ids": [400, 401], "chosen_ids": [316, 321, 322, 317, 318], "chosen_mask": [1, 0, 0, 1, 1],
            "rejected_ids": [314, 315], "rejected_mask": [1, 1], "margin": 0.5,
        },
    ]  # fmt: skip
    assert result.manifest["n_loss_tokens"] == 9
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch_float())
    wanted = {
        f"logps/{side}": np.mean(
            [logps(model, row["prompt_ids"], row[f"{side}_ids"], row[f"{side}_mask"]) for row in rows]
        )
        for side in ("chosen", "rejected")
    }
    trainer = program_beside(result.path, "trl_exact").ExactDPOTrainer(
        model,
        args=config_of(DPOConfig, tmp_path, per_device_train_batch_size=2, max_length=None, logging_steps=1),
        train_dataset=load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path)),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert {name: logged[name] for name in wanted} == pytest.approx(wanted, rel=1e-3)


def torch_float():
    import torch

    return torch.float32


@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
def test_kto_trainer_counts_sampled_tokens_of_every_row(pool, tmp_path, model_dir, loss_type):
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import KTOConfig

    fill(pool, HARD.keys() - {"empty_prompt"})
    planned = made(pool, "kto")
    result = export(planned, pool, "trl_kto", tmp_path)
    rows = pq.read_table(result.path).to_pylist()
    wanted = sorted(token for uid in planned.step_uids for token in pool.steps.get(uid)["response_ids"].tolist())
    counted = [i for r in rows for i, on in zip(r["completion_ids"], r["completion_mask"], strict=True) if on]
    assert sorted(counted) == wanted
    assert result.manifest["n_loss_tokens"] == len(wanted)
    assert any("several examples" in one["what"] for one in result.manifest["differences"])
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch_float())
    chosen = [logps(model, r["prompt_ids"], r["completion_ids"], r["completion_mask"]) for r in rows if r["label"]]
    trainer = program_beside(result.path, "trl_exact").ExactKTOTrainer(
        model,
        args=config_of(
            KTOConfig,
            tmp_path,
            per_device_train_batch_size=len(rows),
            max_length=None,
            loss_type=loss_type,
            logging_steps=1,
        ),
        train_dataset=load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path)),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    trainer.train()
    assert trainer.state.log_history[0]["logps/chosen"] == pytest.approx(np.mean(chosen), rel=1e-3)


def test_a_pair_says_what_stands_behind_a_compaction(pool, tmp_path):
    fill(pool, HARD.keys())
    planned = made(pool, "dpo")
    result = export(planned, pool, "trl_dpo", tmp_path)
    pairs = {uid for pair in planned.pairs.to_pylist() for uid in (pair["chosen_uid"], pair["rejected_uid"])}
    rows = pq.read_table(result.path).to_pylist()
    inside = {
        token
        for row in rows
        for side in ("chosen", "rejected")
        for token, on in zip(row[f"{side}_ids"], row[f"{side}_mask"], strict=True)
        if on
    }
    chosen = [uid for uid in planned.step_uids if pool.steps.get(uid)["trajectory_uid"] in pairs]
    missing = {token for uid in chosen for token in pool.steps.get(uid)["response_ids"].tolist()} - inside
    assert missing
    assert f"{len(missing)} sampled tokens of" in str(result.manifest["differences"])


def test_pairs_and_labels_need_their_algorithm(filled, tmp_path):
    for name in ("trl_dpo", "trl_kto"):
        with pytest.raises(InvalidInput, match=r"no pairs|desirable"):
            export(made(filled, "sft"), filled, name, tmp_path)


def test_slime_samples_say_what_slime_reads(filled, tmp_path):
    import torch

    result = export(made(filled, "grpo"), filled, "slime", tmp_path, merge="trajectory")
    data = torch.load(result.path, weights_only=False)
    samples = data["samples"]
    assert [one["rollout_id"] for one in samples] == [0, 1, 2, 3] and [one["group_index"] for one in samples] == [
        0,
        0,
        1,
        1,
    ]
    first = samples[0]
    assert first["tokens"] == [*FIRST, 310, 311, 320, 312]
    assert (first["response_length"], first["loss_mask"]) == (4, [1, 1, 0, 1])
    assert first["rollout_log_probs"] == [-0.125, -0.25, 0.0, -0.125]
    assert (first["status"], first["weight_versions"]) == ("completed", ["2", "2"])
    assert first["reward"] == {"advantage": pytest.approx(0.7071055, rel=1e-5), "reward": 1.0}
    by_step = torch.load(export(made(filled, "grpo"), filled, "slime", tmp_path).path, weights_only=False)["samples"]
    assert [one["rollout_id"] for one in by_step] == [0, 0, 1, 2, 3, 3]


def test_openai_messages_mark_what_was_not_chosen(pool, tmp_path):
    def turns(uid, n, **fields):
        history = [{"role": "user", "content": "task"}]
        steps = conversation(uid, "A", [([k + 1], [k + 50]) for k in range(n)], **fields)
        for k, step in enumerate(steps):
            answer = {"role": "assistant", "content": f"{uid} says {k}"}
            object.__setattr__(step, "messages", list(history))
            object.__setattr__(step, "response_message", answer)
            history += [answer, {"role": "tool", "content": f"result {k}", "tool_call_id": "1"}]
        return steps

    pool.steps.append(
        turns("a", 3, call_kind=lambda k: "retry" if k == 1 else "main"), completions=done("a", reward=1.0)
    )
    result = export(made(pool, "sft"), pool, "openai_messages", tmp_path)
    (line,) = [json.loads(text) for text in result.path.read_text().splitlines()]
    assert [(m["role"], m.get("weight")) for m in line["messages"]] == [
        ("user", None), ("assistant", None), ("tool", None), ("assistant", 0), ("tool", None), ("assistant", None),
    ]  # fmt: skip
    assert line["tools"] == [{"type": "function", "function": {"name": "read"}}]


def test_formats_without_an_unscored_state_refuse_unscored_rows(filled, tmp_path):
    filled.steps.append(conversation("u", "C", [([1, 2], [3])]), completions=done("u"))
    for name, options in (("slime", {"credit": "trainer"}), ("areal", {"credit": "trainer"}),
                          ("verl_rollout", {"rewards": "step"})):  # fmt: skip
        with pytest.raises(InvalidInput, match="1 rows have no reward"):
            export(made(filled, "sft"), filled, name, tmp_path, **options)
        with pytest.raises(InvalidInput, match="assigns no advantages"):
            export(made(filled, "sft"), filled, name, tmp_path)
