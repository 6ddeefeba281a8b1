"""Exactness with the embedded engine, end to end: ids are the engine's, log-probs are the model's.

The weights are untrained, so the answers are gibberish; what counts is that every token and log-prob arrives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.config import Settings
from core.export import export
from core.service import Service
from core.serving.process import EngineProcess
from core.tasks.demo_agent import SYSTEM_PROMPT, TOOLS, Workspace
from core.tasks.demo_tasks import demo_tasks
from core.tree.attention import packed_hidden, use_tree_attention
from core.tree.scores import token_scores
from core.tree.terms import loss_terms
from core.types import View

N_TASKS = 2
N_ROLLOUTS = 2
N_TURNS = 4
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    args = ["--model-dir", folder / "model", "--record", folder / "record.jsonl"]
    with EngineProcess.start("local", args=args, startup_timeout_s=120) as running:
        yield running


@pytest.fixture(scope="module")
def service(engine: EngineProcess, folder: Path) -> Iterator[Service]:
    opened = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
    yield opened
    opened.close()


def attempt(service: Service, model: str, task_index: int, rollout: int, workspace: Path) -> str:
    """The demo agent's loop, made to go on when the gibberish calls no tool: a person says so."""
    from openai import OpenAI

    task = demo_tasks()[task_index]
    session = service.mint_session(prompt_uid=task.task_uid, agent="demo-agent")
    workspace.mkdir()
    task.write_inputs(workspace)
    files = Workspace(workspace)
    messages: list[Any] = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.prompt}]
    with OpenAI(base_url=session["base_url"], api_key=session["api_key"]) as client:
        for turn in range(N_TURNS):
            answer = client.chat.completions.create(
                model=model,
                messages=messages,
                tools=TOOLS,
                max_tokens=MAX_TOKENS,
                temperature=1.0,
                seed=100 * task_index + 10 * rollout + turn,
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_unset=True, exclude_none=True))
            for call in message.tool_calls or ():
                result = files.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            messages.append({"role": "user", "content": "Go on."})
    done = httpx.post(
        f"{service.base_url}/api/v1/trajectories/{session['trajectory_uid']}/complete",
        json={"reward": float(rollout), "outcome": "max_turns"},
        timeout=120,
    )
    assert done.status_code == 200, done.text
    return str(session["trajectory_uid"])


@pytest.fixture(scope="module")
def trajectories(service: Service, engine: EngineProcess, folder: Path) -> list[dict[str, Any]]:
    uids = [
        attempt(service, str(engine.model), task, rollout, folder / f"workspace-{task}-{rollout}")
        for task in range(N_TASKS)
        for rollout in range(N_ROLLOUTS)
    ]
    assert service.ingest.catch_up(120)
    return [service.pool.trajectories.get(uid) for uid in uids]


def test_captured_ids_are_the_engines_own(trajectories: list[dict[str, Any]], folder: Path) -> None:
    recorded = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    steps = [step for trajectory in trajectories for step in trajectory["steps"]]
    assert len(steps) == N_TASKS * N_ROLLOUTS * N_TURNS == len(recorded)
    for trajectory in trajectories:
        assert [step["step_index"] for step in trajectory["steps"]] == list(range(N_TURNS))
    for step, entry in zip(steps, recorded, strict=True):  # attempts ran one after the other
        assert list(step["prompt_ids"]) == entry["prompt_ids"]
        assert list(step["response_ids"]) == entry["response_ids"]
        assert list(step["response_logprobs"]) == pytest.approx(entry["logprobs"], abs=1e-7)
        assert step["token_source"] == "engine"
        assert step["mismatch"] is None


def test_a_plain_forward_pass_gives_the_captured_logprobs(
    trajectories: list[dict[str, Any]], service: Service, folder: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    chosen = plan(service.pool, View(), Recipe(algorithm="grpo"))
    result = export(chosen, service.pool, "steps_parquet", folder / "export")
    rows = pq.read_table(result.path).to_pylist()
    captured = {step["step_uid"]: step for trajectory in trajectories for step in trajectory["steps"]}
    assert {row["step_uid"] for row in rows} == set(captured)

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    worst = 0.0
    for row in rows:
        assert row["prompt_ids"] == list(captured[row["step_uid"]]["prompt_ids"])
        assert row["response_ids"] == list(captured[row["step_uid"]]["response_ids"])
        n_prompt, response = len(row["prompt_ids"]), torch.tensor(row["response_ids"])
        with torch.no_grad():
            logits_TV = model(torch.tensor([row["prompt_ids"] + row["response_ids"]])).logits[0]
        logprobs_RV = torch.log_softmax(logits_TV[n_prompt - 1 : -1].float(), dim=-1)
        recomputed = logprobs_RV.gather(1, response[:, None])[:, 0]
        worst = max(worst, (recomputed - torch.tensor(row["response_logprobs"])).abs().max().item())
    assert worst < 1e-4
    assert len(rows) == len(captured)


@pytest.mark.parametrize("kind", ["cascade", "blocks"])
def test_packed_rows_give_the_captured_logprobs(
    trajectories: list[dict[str, Any]], service: Service, folder: Path, kind: str
) -> None:
    """Attempts that branch, packed as the plan packs them: each step's log-probs come back, for its own tokens.

    The engine decoded token by token with a cache in fp32; 1e-4 is what that and one packed pass may differ by.
    """
    import torch
    from transformers import AutoModelForCausalLM

    longest = max(len(step["prompt_ids"]) + len(step["response_ids"]) for t in trajectories for step in t["steps"])
    chosen = plan(service.pool, View(), Recipe(algorithm="grpo", token_budget=longest + 200))
    captured = {step["step_uid"]: step for trajectory in trajectories for step in trajectory["steps"]}
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    use_tree_attention(model, kind)
    assert len(chosen.layout.rows) > 1 and chosen.layout.token_ratio < 0.7
    logprobs: dict[str, list[float]] = {}
    for index in range(len(chosen.layout.rows)):
        row, sequences = chosen.layout.row(service.pool.training, index, pad=True)
        terms = loss_terms(row, sequences)
        with torch.no_grad():
            logp = token_scores(model, packed_hidden(model, row), terms).logp.tolist()
        for step, value in zip(terms.step.tolist(), logp, strict=True):
            logprobs.setdefault(sequences.step_uids[step], []).append(value)
    assert set(logprobs) == set(captured)
    for uid, values in logprobs.items():
        assert values == pytest.approx(list(captured[uid]["response_logprobs"]), abs=1e-4), uid


def messages_loop(service: Service, model: str, session: dict[str, Any]) -> None:
    from anthropic import Anthropic

    tools: Any = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    messages: list[Any] = [{"role": "user", "content": "Say something."}]
    with Anthropic(base_url=service.base_url, api_key=session["api_key"]) as client:
        for turn in range(3):
            body: dict[str, Any] = {"model": model, "max_tokens": MAX_TOKENS, "tools": tools, "messages": messages}
            body |= {"extra_body": {"seed": turn, "temperature": 1.0}}
            if turn % 2:
                with client.messages.stream(**body) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(**body)
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": "?"}
                for b in answer.content
                if b.type == "tool_use"
            ]
            messages += [
                {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
                {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
            ]


def responses_loop(service: Service, model: str, session: dict[str, Any]) -> None:
    from openai import OpenAI

    previous: Any = {}
    with OpenAI(base_url=session["base_url"], api_key=session["api_key"]) as client:
        for turn in range(3):
            body: dict[str, Any] = {"model": model, "max_output_tokens": MAX_TOKENS, "temperature": 1.0}
            body |= {"instructions": SYSTEM_PROMPT, "input": "Say something.", "extra_body": {"seed": turn}, **previous}
            answer = client.responses.create(**body)
            previous = {"previous_response_id": answer.id}


@pytest.mark.parametrize("loop", [messages_loop, responses_loop])
def test_other_dialects_keep_the_engines_ids(service: Service, engine: EngineProcess, folder: Path, loop: Any) -> None:
    n_before = len((folder / "record.jsonl").read_text().splitlines())
    session = service.mint_session(agent="any")
    loop(service, str(engine.model), session)
    assert service.ingest.catch_up(120)
    recorded = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()[n_before:]]
    steps = service.pool.trajectories.get(session["trajectory_uid"])["steps"]
    assert len(steps) == len(recorded) == 3
    for step, entry in zip(steps, recorded, strict=True):
        assert list(step["prompt_ids"]) == entry["prompt_ids"]
        assert list(step["response_ids"]) == entry["response_ids"]
        assert list(step["response_logprobs"]) == pytest.approx(entry["logprobs"], abs=1e-7)
        assert (step["token_source"], step["mismatch"]) == ("engine", None)
