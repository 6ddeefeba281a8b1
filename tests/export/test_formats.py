"""Formats whose trainers don't run here: fields and shapes as their sources read them, values as captured."""

from __future__ import annotations

import importlib.util
import json

import msgspec
import orjson
import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput, NotFound
from core.export import export
from core.export.base import _WithoutMasks
from core.types import View
from tests.batch.keeping_all import keeping_all

from .conftest import conversation, done


class MicroBatch(msgspec.Struct, array_like=True):
    """The fields of prime-rl's struct of this name, in its order (prime_rl/transports/rollouts/types.py)."""

    input_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float]
    position_ids: list[int]
    sequence_lengths: list[int]
    temperatures: list[float]
    env_names: list[str]
    seq_lens: list[int]


@pytest.fixture
def filled(pool):
    """Two groups of two rollouts; the first and the last have two turns."""
    pool.steps.append(
        conversation("a", "A", [([1, 2, 3], [10, 11]), ([20], [12])], sampling={"temperature": 0.5})
        + conversation("b", "A", [([1, 2, 3], [13])], sampling={"temperature": 1.0})
        + conversation("c", "B", [([4, 5], [14, 15])], sampling={"temperature": 1.0})
        + conversation("d", "B", [([4, 5], [16]), ([21, 22], [17, 18])], sampling={"temperature": 1.0}),
        completions=[*done("a", reward=1.0), *done("b", reward=0.25), *done("c", reward=0.0), *done("d", reward=0.5)],
    )
    return pool


ROWS = {
    "a": ([1, 2, 3, 10, 11, 20, 12], [0, 0, 0, 1, 1, 0, 1], [0, 0, 0, -0.125, -0.25, 0, -0.125]),
    "b": ([1, 2, 3, 13], [0, 0, 0, 1], [0, 0, 0, -0.125]),
    "c": ([4, 5, 14, 15], [0, 0, 1, 1], [0, 0, -0.125, -0.25]),
    "d": ([4, 5, 16, 21, 22, 17, 18], [0, 0, 1, 0, 0, 1, 1], [0, 0, -0.125, 0, 0, -0.125, -0.25]),
}
"""Trajectory -> ids, loss mask, log-probs of its one row."""


def made(pool, algorithm="grpo", **recipe):
    return plan(pool, View(), parse_recipe({**keeping_all(algorithm), **recipe}))


def advantages(planned):
    return {one.trajectory_uid: one.advantage for group in planned.groups for one in group.trajectories}


def program_beside(path, name):
    spec = importlib.util.spec_from_file_location(name, path.parent / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


@pytest.mark.parametrize("budget", [8, 12, 32768])
def test_prime_rl_micro_batches(filled, tmp_path, budget):
    planned = made(filled, token_budget=budget)
    path = export(planned, filled, "prime_rl", tmp_path).path
    batches = msgspec.msgpack.decode(path.read_bytes(), type=list[MicroBatch])
    planned_advantages = advantages(planned)
    rows = []
    for batch in batches:
        assert len(batch.input_ids) <= budget and sum(batch.seq_lens) == len(batch.input_ids)
        assert batch.sequence_lengths == batch.seq_lens
        begin = 0
        for n in batch.seq_lens:
            at = slice(begin, begin + n)
            assert batch.position_ids[at] == list(range(n)) and len(set(batch.temperatures[at])) == 1
            rows.append((batch.input_ids[at], batch.loss_mask[at], batch.inference_logprobs[at], batch.advantages[at]))
            begin += n
    assert [row[:3] for row in rows] == [(ids, [bool(m) for m in mask], scores) for ids, mask, scores in ROWS.values()]
    for uid, (_, mask, _, values) in zip(ROWS, rows, strict=True):
        assert values == pytest.approx([planned_advantages[uid] if m else 0.0 for m in mask], rel=1e-6)
    assert batches[0].temperatures[0] == 0.5 and batches[-1].temperatures[-1] == 1.0
    assert len(batches) == {8: 3, 12: 2, 32768: 1}[budget]


def test_areal_tensors(filled, tmp_path):
    import torch

    rows = torch.load(export(made(filled), filled, "areal", tmp_path).path, weights_only=True)
    kinds = {
        "input_ids": torch.int32, "loss_mask": torch.int32, "logprobs": torch.float32, "versions": torch.int32,
        "turn_ids": torch.int32, "attention_mask": torch.bool, "rewards": torch.float32,
    }  # fmt: skip
    for row, (ids, mask, scores) in zip(rows, ROWS.values(), strict=True):
        assert {name: value.dtype for name, value in row.items()} == kinds
        assert row["input_ids"].tolist() == [ids] and row["loss_mask"].tolist() == [mask]
        assert row["logprobs"].tolist() == [scores]
        assert row["versions"].tolist() == [[2 if m else -1 for m in mask]]
    assert rows[0]["turn_ids"].tolist() == [[0, 0, 0, 0, 0, 0, 1]]
    assert [row["rewards"].item() for row in rows] == pytest.approx(
        [0.707105, -0.707105, -0.707105, 0.707105], abs=1e-5
    )
    own = torch.load(export(made(filled), filled, "areal", tmp_path, credit="trainer").path, weights_only=True)
    assert [row["rewards"].item() for row in own] == [1.0, 0.25, 0.0, 0.5]


def test_rllm_episodes(filled, tmp_path):
    planned = made(filled)
    path = export(planned, filled, "rllm", tmp_path).path
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(one["trajectories"][0]["steps"]) for one in episodes] == [2, 1, 1, 2]
    planned_advantages = advantages(planned)
    assert [one["id"] for one in episodes] == ["A:0", "A:1", "B:0", "B:1"]
    for episode in episodes:
        assert episode["termination_reason"] == "unknown", "rLLM's enumeration has no null"
        (trajectory,) = episode["trajectories"]
        for step in trajectory["steps"]:
            stored = filled.steps.get(step["info"]["step_uid"])
            for name, ours in (
                ("prompt_ids", "prompt_ids"),
                ("response_ids", "response_ids"),
                ("logprobs", "response_logprobs"),
            ):
                assert step[name] == list(stored[ours])
            assert step["advantage"] == planned_advantages[trajectory["uid"]] and step["weight_version"] == 2
            assert step["chat_completions"][-1] == {"role": "assistant", "content": "ok"}
    assert [one["trajectories"][0]["reward"] for one in episodes] == [1.0, 0.25, 0.0, 0.5]


def test_tinker_lines_are_shifted(filled, tmp_path):
    path = export(made(filled), filled, "tinker", tmp_path).path
    assert (tmp_path / "tinker_datums.py").exists()
    for line, (ids, mask, scores) in zip(path.read_text().splitlines(), ROWS.values(), strict=True):
        row = json.loads(line)
        assert (row["input_tokens"], row["target_tokens"]) == (ids[:-1], ids[1:])
        assert (row["mask"], row["logprobs"]) == ([float(m) for m in mask[1:]], scores[1:])
        assert len(row["advantages"]) == len(ids) - 1


def test_llama_factory_lines_and_registry(pool, tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    (step,) = conversation("a", "A", [([1], [2])])
    history = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "read it"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "words"},
    ]
    object.__setattr__(step, "messages", history)
    pool.steps.append([step], completions=done("a", reward=1.0))
    path = export(made(pool, "sft"), pool, "llama_factory", tmp_path).path
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert [message["role"] for message in line["messages"]] == ["system", "user", "function_call", "tool", "assistant"]
    assert line["messages"][1]["content"] == "read it"
    assert json.loads(line["messages"][2]["content"]) == [{"name": "read", "arguments": {"path": "a"}}]
    assert json.loads(line["tools"])[0]["name"] == "read"
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["claw_studio"]["file_name"] == path.name and info["claw_studio"]["formatting"] == "sharegpt"


@pytest.mark.parametrize("name", ["prime_rl", "areal", "openrlhf", "tinker"])
def test_unknown_log_probs_are_refused_not_made_up(pool, tmp_path, name):
    pool.steps.append(
        conversation("a", "A", [([1], [2])], response_logprobs=None, sampling={"temperature": 1.0})
        + conversation("b", "A", [([1], [3])], response_logprobs=None, sampling={"temperature": 1.0}),
        completions=[*done("a", reward=1.0), *done("b", reward=0.0)],
    )
    with pytest.raises(InvalidInput, match="log-probs of a step are unknown"):
        export(made(pool), pool, name, tmp_path)
    assert not list(tmp_path.glob(f"{name}*"))


def test_trajectories_of_one_query_are_those_of_one_each(filled):
    """Those of the pool, and of a format that has no masks: in the order asked for."""

    def shown(trajectory):
        return orjson.dumps(trajectory, option=orjson.OPT_SERIALIZE_NUMPY, default=str)

    uids = ["d", "a", "c", "b"]
    for source in (filled.training, _WithoutMasks(filled.training, "rllm")):
        assert [*map(shown, source.trajectories(uids))] == [shown(filled.training.trajectory(uid)) for uid in uids]
    with pytest.raises(NotFound, match="'gone'"):
        list(filled.training.trajectories(["a", "gone", "b"]))
