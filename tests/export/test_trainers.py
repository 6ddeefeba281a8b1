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

from .conftest import conversation, done

FIRST = [300, 301, 302]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), seed=3)


@pytest.fixture
def filled(pool):
    """Two groups of two rollouts: two turns with a tool's words between, and one turn."""
    pool.append(
        conversation("a", "A", [(FIRST, [310, 311]), ([320], [312])])
        + conversation("b", "A", [(FIRST, [313])])
        + conversation("c", "B", [([400, 401], [314, 315])])
        + conversation("d", "B", [([400, 401], [316]), ([321, 322], [317, 318])]),
        completions=[*done("a", reward=1.0), *done("b", reward=0.25), *done("c", reward=0.0), *done("d", reward=0.5)],
    )
    return pool


def made(pool, algorithm, **recipe):
    return plan(pool, View(), parse_recipe({"algorithm": algorithm, **recipe}))


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
        (rows,) = training_rows(planned, filled, merge=merge)
        assert [planned.step_uids[i] for i in rows.last_step] == wanted
        token_advantages = {
            uid: values
            for uid, values in zip(planned.step_uids, planned.steps["token_advantages"].to_pylist(), strict=True)
        }
        for i, at in enumerate(rows.slices()):
            step = filled.step(planned.step_uids[rows.last_step[i]])
            assert rows.ids[at].tolist() == [*step["prompt_ids"], *step["response_ids"]]
            inside = planned.step_uids[rows.first_step[i] : rows.last_step[i] + 1]
            sampled = [(t, p) for uid in inside for t, p in zip(*response(filled, uid), strict=True)]
            trained = rows.ids[at][rows.loss[at]].tolist(), rows.logprobs[at][rows.loss[at]].tolist()
            assert list(zip(*trained, strict=True)) == sampled
            expected = [value for uid in inside for value in token_advantages[uid]]
            assert rows.advantages[at][rows.loss[at]].tolist() == pytest.approx(expected, rel=1e-6)
            assert np.isnan(rows.advantages[at][~rows.loss[at]]).all()


def response(pool, uid):
    step = pool.step(uid)
    return list(step["response_ids"]), [float(np.float32(p)) for p in step["response_logprobs"]]


def test_grpo_trainer_replays_what_was_captured(filled, tmp_path, model_dir):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    result = export(made(filled, "grpo", n_rollouts=2), filled, "trl_grpo", tmp_path)
    spec = importlib.util.spec_from_file_location("trl_replay", tmp_path / "trl_replay.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    replay = program.Replay(str(result.path))
    seen = {}

    class Watched(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            seen.update({name: inputs[name].clone() for name in ("completion_ids", "completion_mask", "advantages")})
            seen["tool_mask"] = inputs["tool_mask"].clone()
            return super()._compute_loss(model, inputs)

    trainer = Watched(
        AutoModelForCausalLM.from_pretrained(model_dir),
        reward_funcs=replay.reward,
        rollout_func=replay.rollout,
        train_dataset=replay.prompts(),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
        args=config_of(
            GRPOConfig, tmp_path, num_generations=2, per_device_train_batch_size=4, max_completion_length=8, beta=0.0
        ),
    )
    trainer.train()
    mask = (seen["completion_mask"] * seen["tool_mask"]).bool()
    trained = {
        tuple(ids[row].tolist()): round(advantage.item(), 3)
        for ids, row, advantage in zip(seen["completion_ids"], mask, seen["advantages"], strict=True)
    }
    ours = {
        tuple(i for i, m in zip(row["completion_ids"], row["completion_mask"], strict=True) if m): max(
            row["advantages"], key=abs
        )
        for row in pq.read_table(result.path).to_pylist()
    }
    assert trained == {ids: pytest.approx(value, abs=2e-3) for ids, value in ours.items()}
    assert set(trained) == {(310, 311, 312), (313,), (314, 315), (316, 317, 318)}


def test_replay_refuses_groups_of_different_sizes(filled, tmp_path):
    filled.append(conversation("e", "B", [([400, 401], [319])]), completions=done("e", reward=1.0))
    result = export(made(filled, "grpo"), filled, "trl_grpo", tmp_path)
    spec = importlib.util.spec_from_file_location("trl_replay", tmp_path / "trl_replay.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    with pytest.raises(ValueError, match="n_rollouts"):
        program.Replay(str(result.path))


def test_dpo_trainer_trains_on_the_exact_ids(filled, tmp_path, model_dir):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    result = export(made(filled, "dpo"), filled, "trl_dpo", tmp_path)
    rows = pq.read_table(result.path).to_pylist()
    assert rows == [
        {"prompt_ids": FIRST, "chosen_ids": [310, 311, 320, 312], "rejected_ids": [313], "margin": 0.75},
        {"prompt_ids": [400, 401], "chosen_ids": [316, 321, 322, 317, 318], "rejected_ids": [314, 315], "margin": 0.5},
    ]

    class Exact(DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    trainer = Exact(
        AutoModelForCausalLM.from_pretrained(model_dir),
        args=config_of(DPOConfig, tmp_path, per_device_train_batch_size=2, max_length=None),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    sequences = {
        tuple(ids[mask.bool()].tolist()) for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    }
    assert sequences == {
        tuple(row["prompt_ids"] + row[side]) for row in rows for side in ("chosen_ids", "rejected_ids")
    }
    assert np.isfinite(trainer.train().training_loss)


def test_kto_trainer_trains_on_the_exact_ids(filled, tmp_path, model_dir):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import KTOConfig, KTOTrainer

    result = export(made(filled, "kto"), filled, "trl_kto", tmp_path)
    rows = pq.read_table(result.path).to_pylist()
    assert [(row["prompt_ids"][0], row["completion_ids"]) for row in rows] == [
        (300, [310, 311, 320, 312]), (300, [313]), (400, [314, 315]), (400, [316, 321, 322, 317, 318]),
    ]  # fmt: skip

    class Exact(KTOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    trainer = Exact(
        AutoModelForCausalLM.from_pretrained(model_dir),
        args=config_of(
            KTOConfig, tmp_path, per_device_train_batch_size=4, max_length=None, loss_type="apo_zero_unpaired"
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    assert np.isfinite(trainer.train().training_loss)


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
    assert (first["reward"], first["status"], first["weight_versions"]) == (1.0, "completed", ["2"])
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

    pool.append(turns("a", 3, call_kind=lambda k: "retry" if k == 1 else "main"), completions=done("a", reward=1.0))
    result = export(made(pool, "sft"), pool, "openai_messages", tmp_path)
    (line,) = [json.loads(text) for text in result.path.read_text().splitlines()]
    assert [(m["role"], m.get("weight")) for m in line["messages"]] == [
        ("user", None), ("assistant", None), ("tool", None), ("assistant", 0), ("tool", None), ("assistant", None),
    ]  # fmt: skip
    assert line["tools"] == [{"type": "function", "function": {"name": "read"}}]


def test_formats_without_an_unscored_state_refuse_unscored_rows(filled, tmp_path):
    filled.append(conversation("u", "C", [([1, 2], [3])]), completions=done("u"))
    for name in ("slime", "verl_rollout"):
        with pytest.raises(InvalidInput, match="1 rows have no reward"):
            export(made(filled, "sft"), filled, name, tmp_path)
