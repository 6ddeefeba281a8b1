"""A real agent from npm, unmodified: opencode works on files through the gateway, and TRL trains on what it did."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.config import Settings
from core.export import export
from core.service import Service
from core.serving.process import EngineProcess
from core.types import View
from tests.conftest import scripted_engine

from .installed import cli

pytestmark = pytest.mark.agents

PROMPT = "Read input.txt and write its words in alphabetical order to sorted.txt, one per line."
TITLE = "Sorting words"
WORDS = "pear\napple\nfig\n"


def spelled(**arguments: str) -> str:
    """Arguments spelled as opencode spells them again in the next request, so that the tokens stay the same."""
    return json.dumps(arguments, separators=(",", ":"))


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": spelled(**arguments)}


TURNS: list[dict[str, Any]] = [
    {"content": "I read the words.", "tool_calls": [call("read", filePath="input.txt")]},
    {"content": "", "tool_calls": [call("write", filePath="sorted.txt", content="apple\nfig\npeach\n")]},
    {
        "content": "I wrote peach for pear. I correct it and look at both files.",
        "tool_calls": [call("edit", filePath="sorted.txt", oldString="peach", newString="pear")],
    },
    {
        "content": "Both files once more.",
        "tool_calls": [call("read", filePath="sorted.txt"), call("read", filePath="missing.txt")],
    },
    {"content": "The words are in sorted.txt."},
]
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {"when": {"has_tools": False}, "reply": {"content": TITLE}},
        *({"when": {"turn": turn, "has_tools": True}, "reply": reply} for turn, reply in enumerate(TURNS)),
    ],
    "default": {"reply": {"content": "No rule fits."}},
}


@pytest.fixture(scope="module")
def opencode() -> str:
    return cli("opencode")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def service(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("studio") / "data"
    opened = Service.open(Settings(data_dir=data, port=0, engine=str(engine.base_url)))
    yield opened
    opened.close()


def run_opencode(command: str, folder: Path, session: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """One ``opencode run`` in ``folder/workspace`` with every file of its own below ``folder``."""
    workspace, home = folder / "workspace", folder / "home"
    workspace.mkdir()
    home.mkdir()
    (workspace / "input.txt").write_text(WORDS)
    config = {
        "provider": {
            "studio": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Studio",
                "options": {"baseURL": session["base_url"], "apiKey": session["api_key"]},
                "models": {"scripted-1": {"name": "scripted-1", "limit": {"context": 131072, "output": 4096}}},
            }
        },
        "model": "studio/scripted-1",
        "small_model": "studio/scripted-1",
        "permission": {"*": "allow"},
        "autoupdate": False,
        "share": "disabled",
    }
    (home / "opencode.json").write_text(json.dumps(config))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        # Its list of hosted models, updates and language servers would come from the network.
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    return subprocess.run(
        [command, "run", "--model", "studio/scripted-1", "--format", "json", "--print-logs", PROMPT],
        cwd=workspace,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def trajectory(opencode: str, service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the pool holds after opencode did the task and the check rewarded it."""
    folder = tmp_path_factory.mktemp("opencode")
    session = service.mint_session(prompt_uid="sort-words", agent="opencode")
    done = run_opencode(opencode, folder, session)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "workspace" / "sorted.txt").read_text() == "apple\nfig\npear\n", done.stdout[-3000:]
    uid = session["trajectory_uid"]
    answer = httpx.post(
        f"{service.base_url}/api/v1/trajectories/{uid}/complete",
        json={"reward": 1.0, "outcome": "finished"},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    assert service.ingest.catch_up(120)
    return service.pool.trajectories.get(uid)


def main_steps(trajectory: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for step in trajectory["steps"] if step["call_kind"] == "main"]


def test_steps_tool_calls_and_results_stand_in_order(trajectory: dict[str, Any]) -> None:
    steps = main_steps(trajectory)
    assert [step["response_message"].get("content") or "" for step in steps] == [t["content"] for t in TURNS]
    called = [
        [(c["function"]["name"], c["function"]["arguments"]) for c in step["response_message"].get("tool_calls") or ()]
        for step in steps
    ]
    assert called == [[(c["name"], c["arguments"]) for c in turn.get("tool_calls", ())] for turn in TURNS]
    assert [step["finish_reason"] for step in steps] == ["tool_calls"] * 4 + ["stop"]
    results = [message["content"] for message in steps[-1]["messages"] if message["role"] == "tool"]
    assert len(results) == 5
    for part, result in zip(["pear", "success", "success", "fig", "not found"], results, strict=True):
        assert part in result.lower(), result
    for earlier, later in pairwise(steps):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert later["messages"][len(earlier["messages"])]["role"] == "assistant"
    assert all({tool["function"]["name"] for tool in step["tools"]} >= {"read", "write", "edit"} for step in steps)


def test_identity_links_and_kinds(trajectory: dict[str, Any]) -> None:
    assert trajectory["prompt_uid"] == "sort-words"
    assert trajectory["complete"] and trajectory["reward"] == 1.0
    assert {step["agent"] for step in trajectory["steps"]} == {"opencode"}
    assert {step["identity_source"] for step in trajectory["steps"]} == {"key"}
    title = [step for step in trajectory["steps"] if step["call_kind"] == "auxiliary"]
    assert [step["response_message"]["content"] for step in title] == [TITLE]
    assert not title[0]["trainable"]
    steps = main_steps(trajectory)
    assert all(step["trainable"] for step in steps)
    for earlier, later in pairwise(steps):
        assert later["parent_step_uid"] == earlier["step_uid"]
        assert later["transition"] == "extends"
        assert later["n_shared_tokens"] == len(earlier["prompt_ids"]) + len(earlier["response_ids"])


def test_tokens_are_the_engines(trajectory: dict[str, Any], engine: EngineProcess) -> None:
    log = httpx.get(str(engine.base_url).removesuffix("/v1") + "/__log", timeout=120).json()["requests"]
    answers = [entry["choices"][0] for entry in log]
    sampled = sorted((answer["prompt_ids"], answer["response_ids"], answer["logprobs"]) for answer in answers)
    captured = sorted(
        (list(step["prompt_ids"]), list(step["response_ids"]), [float(x) for x in step["response_logprobs"]])
        for step in trajectory["steps"]
    )
    assert [pair[:2] for pair in captured] == [pair[:2] for pair in sampled]
    for (*_, got), (*_, want) in zip(captured, sampled, strict=True):
        assert got == want  # the scripted engine's log-probs are exact in float32
    assert {step["token_source"] for step in trajectory["steps"]} == {"engine"}


def test_trl_takes_a_step_on_the_export(trajectory: dict[str, Any], service: Service, tmp_path: Path) -> None:
    view = View(filters={"agent": ["opencode"]})
    chosen = plan(service.pool, view, Recipe(algorithm="sft", options={"min_reward": None}))
    steps = main_steps(trajectory)
    planned = [uid for group in chosen.groups for member in group.trajectories for uid in member.step_uids]
    assert planned == [step["step_uid"] for step in steps]
    result = export(chosen, service.pool, "trl_sft", tmp_path / "export")

    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    from core.serving.model import make_model

    data = load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path / "cache"))
    sampled = sorted(tuple(step["response_ids"]) for step in steps)
    trained = sorted(run for row in data for run in runs(row["labels"]))
    assert trained == sampled
    make_model(tmp_path / "model", seed=0)
    # One layer of it: the prompt is long, and what is shown is that the trainer takes the file.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32, num_hidden_layers=1)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    arguments = SFTConfig(
        output_dir=str(tmp_path / "trained"),
        max_steps=1,
        per_device_train_batch_size=1,
        learning_rate=1e-3,
        max_length=None,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=data)
    outcome = trainer.train()
    assert outcome.global_step == 1
    assert 0 < outcome.training_loss < 20
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def runs(labels: list[int]) -> list[tuple[int, ...]]:
    """Maximal runs of trained labels; -100 marks what is not trained."""
    prompts: list[list[int]] = []
    for earlier, label in zip([-100, *labels], labels, strict=False):
        if label == -100:
            continue
        if earlier == -100:
            prompts.append([])
        prompts[-1].append(label)
    return [tuple(run) for run in prompts]
