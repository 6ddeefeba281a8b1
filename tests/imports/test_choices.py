"""What a log holds beside its first choice, its ones and zeros, and its first byte."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.api.wire import StepIn, check
from core.imports import FORMATS, recognise
from core.imports.base import ConvertedRecord, Problem
from tests.conftest import scripted_engine

DATA = Path(__file__).parent / "data"
CALLS = """
import json, sys
import litellm
from litellm.integrations.custom_logger import CustomLogger

class Keep(CustomLogger):
    def log_success_event(self, kwargs, response_obj, start_time, end_time):
        with open(sys.argv[2], "a") as out:
            out.write(json.dumps(kwargs["standard_logging_object"], default=str) + "\\n")

litellm.callbacks = [Keep()]
litellm.completion(
    model="openai/scripted-1", api_base=sys.argv[1], api_key="sk-none", n=2, logprobs=True, temperature=0.7,
    messages=[{"role": "user", "content": "two, please"}], extra_body={"return_token_ids": True},
    litellm_session_id="s",
)
import time
for _ in range(200):
    try:
        if open(sys.argv[2]).read().endswith("\\n"):
            break
    except OSError:
        pass
    time.sleep(0.1)
"""
"""A call through LiteLLM that asks for two choices, and LiteLLM's own log of it."""

SLIME = """
import sys, types
from pathlib import Path

root, out = sys.argv[1:]
sys.path.insert(0, root)

class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *a, **k: None})
        setattr(self, name, made)
        return made

class Finder:
    def find_spec(self, name, path=None, target=None):
        import importlib.machinery
        if name.split(".")[0] in {"ray", "sglang", "sglang_router", "wandb", "httpx", "pybase64", "megatron"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Anything(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.append(Finder())
from slime.observability.rollout_data_utils import save_debug_rollout_data
from slime.utils.types import Sample

def sample(index, rollout, tokens, mask, reward, **more):
    return Sample(group_index=0, index=index, rollout_id=rollout, tokens=tokens, response_length=len(mask),
                  loss_mask=mask, reward=reward, rollout_log_probs=[-0.5] * len(mask), weight_versions=["3"],
                  status=Sample.Status.COMPLETED, **more)

samples = [
    sample(0, 0, [1, 2, 10, 11], [1, 1], 1.0),
    sample(1, 0, [1, 3, 10, 12, 4, 13], [1, 0, 1], 1.0),
    sample(2, 1, [1, 2, 14], [1], 0.0),
    sample(3, 2, [1, 2, 15], [1], 0.5, remove_sample=True),
]
save_debug_rollout_data(out, samples, rollout_id=7, evaluation=False)
"""
"""slime's own samples, written by slime's own program."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scripted_engine(
        tmp_path_factory.mktemp("engine"),
        {"model": "scripted-1", "rules": [], "default": {"reply": {"content": "one of two"}}},
    ) as started:
        assert started.base_url
        yield started.base_url


def read(path: Path, name: str) -> list[dict[str, Any]]:
    """The steps of a file that is recognised as this format."""
    assert recognise(path).name == name
    items = list(FORMATS[name].read(path))
    assert all(isinstance(item, ConvertedRecord) for item in items), items
    return [dict(step) for item in items if isinstance(item, ConvertedRecord) for step in item.steps]


def test_both_choices_of_a_real_litellm_call(engine: str, tmp_path: Path) -> None:
    out = tmp_path / "litellm.jsonl"
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ran = subprocess.run([sys.executable, "-c", CALLS, engine, out], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    choices = json.loads(out.read_text().splitlines()[0])["response"]["choices"]
    assert len(choices) == 2
    steps = read(out, "litellm")
    assert [step["response_message"]["content"] for step in steps] == [one["message"]["content"] for one in choices]
    token_ids = [one["provider_specific_fields"]["token_ids"] for one in choices]
    assert [step["response_ids"] for step in steps] == token_ids
    assert [(step["step_index"], step.get("is_last", False)) for step in steps] == [(0, False), (1, True)]
    assert len({step["step_uid"] for step in steps}) == 2


def test_both_choices_of_langfuses_openai_integration(engine: str, tmp_path: Path) -> None:
    """The output is what its integration makes of a real answer: a list of messages where there are several choices."""
    openai = pytest.importorskip("openai")
    talk = [{"role": "user", "content": "two, please"}]
    answer = openai.OpenAI(base_url=engine, api_key="none").chat.completions.create(
        model="scripted-1", messages=talk, n=2
    )
    output = [choice.message.model_dump(exclude_none=True) for choice in answer.choices]
    common = {
        "traceId": "t",
        "type": "GENERATION",
        "input": talk,
        "startTime": "2026-09-01T12:00:00Z",
        "model": "m",
    }
    forms = [output, {"choices": [{"message": one} for one in output]}, json.dumps(output)]
    path = tmp_path / "langfuse.jsonl"
    path.write_text("".join(json.dumps({**common, "id": str(i), "output": one}) + "\n" for i, one in enumerate(forms)))
    steps = read(path, "langfuse")
    assert [step["response_message"]["content"] for step in steps] == ["one of two"] * 6
    assert [step["step_index"] for step in steps] == list(range(6))
    assert [step["is_last"] for step in steps] == [False] * 5 + [True]
    path.write_text(json.dumps({**common, "id": "x", "output": [*output, *talk]}) + "\n")
    (problem,) = FORMATS["langfuse"].read(path)
    assert isinstance(problem, Problem)
    assert problem.field == "output"


def test_every_choice_that_rllms_gateway_logged() -> None:
    """Its own file of three calls (``make_data.py``), beside the engine's own log of them."""
    steps = read(DATA / "rllm_choices.db", "rllm")
    chat, stream, completions = json.loads((DATA / "rllm_choices.json").read_text())
    by_call = {
        name: [one for one in steps if one["trajectory_uid"].startswith(name)] for name in ("chat", "completions")
    }
    for made, sampled in ((by_call["chat"], chat), (by_call["completions"], completions)):
        assert [one["response_ids"] for one in made] == [choice["response_ids"] for choice in sampled]
        assert [one["prompt_ids"] for one in made] == [choice["prompt_ids"] for choice in sampled]
        assert [one["response_logprobs"] for one in made] == [choice["logprobs"] for choice in sampled]
        assert [one["response_message"]["content"] for one in made] == [
            choice["message"]["content"] for choice in sampled
        ]
        assert not any(one.get("mismatch") for one in made)
        assert [one["step_index"] for one in made] == list(range(len(made)))
        assert {(one["token_source"], one["policy_version"]) for one in made} == {("engine", 7)}
    assert [one["trajectory_uid"] for one in by_call["completions"]] == [
        *["completions"] * 2,
        *["completions.prompt1"] * 2,
    ]
    assert [one["messages"][0]["content"][:5] for one in by_call["completions"]] == ["One, ", "One, ", "Three", "Three"]
    assert [one.get("is_last", False) for one in by_call["completions"]] == [False, True] * 2
    # Of a stream it joins the tokens of both choices: what was sampled can't be told from that.
    (joined,) = (one for one in steps if one["trajectory_uid"] == "stream")
    assert sorted(joined["response_ids"]) == sorted(token for choice in stream for token in choice["response_ids"])
    assert "2 choices" in joined["mismatch"]
    assert check(StepIn, joined).mismatch == joined["mismatch"]


def test_slimes_own_samples(tmp_path: Path) -> None:
    root = Path(os.environ.get("CLAW_UPSTREAM", "/nonexistent")) / "slime"
    if not root.exists():
        pytest.skip("slime's sources are not here, so its own writer was not run: CLAW_UPSTREAM names their folder")
    out = tmp_path / "rollout_{rollout_id}.pt"
    ran = subprocess.run([sys.executable, "-c", SLIME, root, out], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    steps = read(tmp_path / "rollout_7.pt", "slime")
    trajectories = list(dict.fromkeys(step["trajectory_uid"] for step in steps))
    assert [trajectories.index(step["trajectory_uid"]) for step in steps] == [0, 0, 0, 1, 2]
    assert [step["step_index"] for step in steps] == [0, 1, 2, 0, 0]
    assert [step["response_ids"] for step in steps] == [[10, 11], [12], [13], [14], [15]]
    assert [step.get("reward") for step in steps] == [None, None, 1.0, 0.0, 0.5]
    assert [step.get("is_last") for step in steps] == [False, False, True, True, True]
    assert [step.get("status") for step in steps] == [None] * 4 + ["aborted"]


@pytest.mark.parametrize("value", [0.5, 2, -1, "1"])
def test_half_a_token_is_refused(tmp_path: Path, value: Any) -> None:
    sample = {"tokens": [1, 2, 3], "response_length": 2, "loss_mask": [1, value], "reward": 1.0}
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": value}]}
    for name, record, field in (("slime", sample, "loss_mask"), ("messages", chat, "messages[1].weight")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(record) + "\n")
        (problem,) = FORMATS[name].read(path)
        assert isinstance(problem, Problem)
        assert problem.field == field


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("whole", ["lines", "array", "object"])
def test_a_byte_order_mark_is_read_over(tmp_path: Path, packed: bool, whole: str) -> None:
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    text = {
        "lines": json.dumps(record) + "\n" + json.dumps(record) + "\n",
        "array": json.dumps([record, record], indent=1),
        "object": json.dumps({"data": [record, record]}, indent=1),
    }[whole]
    data = text.encode("utf-8-sig")
    path = tmp_path / "chats.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert len(read(path, "messages")) == 2
