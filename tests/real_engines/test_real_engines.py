"""Real engines behind the gateway: what agents are told, what is stored, and that it is what the model computes.

``.ci/run`` installs vLLM's CPU build into ``.cache/engines``. Engines that take longer to build than to test are run
by hand: ``CLAW_ENGINES='llamacpp=http://127.0.0.1:8913/v1' python -m pytest tests/real_engines``; each serves the
model that ships (``core.serving.model.make_model``, 32-bit floats) under the name ``tiny``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from core.config import Settings
from core.service import Service
from core.serving.model import make_model
from core.serving.tokenizer import load_tokenizer
from tests.browser.conftest import free_port
from tests.left_out import missing

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

VLLM = Path(__file__).resolve().parents[2] / ".cache" / "engines" / "vllm" / "bin" / "python"
START_S = 400
BY_HAND = dict(pair.split("=", 1) for pair in os.environ.get("CLAW_ENGINES", "").split(",") if pair)
LOGPROB_LIMIT = {"vllm": 1e-3, "llamacpp": 5e-3}
"""Nats between an engine's raw log-prob and a plain forward pass (llama.cpp rounds more); SGLang's are after
temperature."""
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Return the text of a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("engine") / "model")


@pytest.fixture(scope="module", params=["vllm", *BY_HAND])
def engine(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[tuple[str, str]]:
    """(kind, base URL)."""
    if request.param in BY_HAND:
        yield request.param, BY_HAND[request.param]
        return
    if not VLLM.exists():
        missing("vLLM is not installed, so no real engine was tested: .ci/run installs it into .cache/engines")
    port = free_port()
    log = model_dir.parent / "vllm.log"
    command = [VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", model_dir, "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"]
    command += ["--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with log.open("w") as output:
        running = subprocess.Popen(
            list(map(str, command)), stdout=output, stderr=output, env={**os.environ, **quiet}, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}/v1"
        deadline = time.monotonic() + START_S
        while True:
            try:
                if httpx.get(f"{url}/models", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            ended = running.poll() is not None
            assert not ended and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)
        yield "vllm", url
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(30)


@pytest.fixture(scope="module")
def service(engine: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    opened = Service.open(Settings(data_dir=tmp_path_factory.mktemp("real") / "data", port=0, engine=engine[1]))
    yield opened
    opened.close()


def steps_of(service: Service, trajectory_uid: str) -> list[dict[str, Any]]:
    assert service.ingest.catch_up(120)
    steps: list[dict[str, Any]] = service.pool.trajectories.get(trajectory_uid)["steps"]
    return steps


def test_the_engine_is_known_for_what_it_is(service: Service, engine: tuple[str, str]) -> None:
    kind, _ = engine
    from openai import OpenAI

    with OpenAI(base_url=f"{service.base_url}/known/task/v1", api_key="none", timeout=300) as client:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
    (status,) = service.engines.status()
    assert status["ok"]
    assert status["findings"]["flavour"] == kind
    assert status["findings"]["version"]


def test_a_talk_of_whole_and_streamed_turns_is_one_exact_chain(
    service: Service, engine: tuple[str, str], model_dir: Path
) -> None:
    """An agent that streams every other turn; what it was told is what is stored, and what the model computes."""
    import torch
    from openai import OpenAI
    from transformers import AutoModelForCausalLM

    kind, _ = engine
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]
    deltas = []
    with OpenAI(base_url=f"{service.base_url}/talk-{kind}/task/v1", api_key="none", timeout=300) as client:
        for turn in range(4):
            request: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0.8}
            if turn % 2:
                text = ""
                for chunk in client.chat.completions.create(**request, stream=True):
                    text += "".join(choice.delta.content or "" for choice in chunk.choices)
            else:
                text = client.chat.completions.create(**request).choices[0].message.content or ""
            deltas.append(text)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    steps = steps_of(service, f"talk-{kind}")
    assert len(steps) == 4
    tokenizer = load_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    before: list[int] = []
    for turn, (step, text) in enumerate(zip(steps, deltas, strict=True)):
        assert step["status"] == "ok" and step["mismatch"] is None
        assert step["token_source"] == "engine"
        assert step["stream_mode"] == (("relay" if kind == "vllm" else "whole") if turn % 2 else "none")
        prompt = step["prompt_ids"].tolist()
        # Gibberish is not always encoded again as it was sampled; then the chain is realigned, and says so.
        extends = prompt[: len(before)] == before
        assert step["transition"] == (("extends" if extends else "realigned") if turn else None)
        before = [*prompt, *step["response_ids"].tolist()]
        assert step["n_response_tokens"] == len(step["response_logprobs"]) > 0
        assert tokenizer.decode(step["response_ids"].tolist()).strip() == text.strip()
        rendered = tokenizer.encode(tokenizer.render(step["messages"]))
        assert step["prompt_ids"].tolist() == rendered
        if kind in LOGPROB_LIMIT:
            whole = torch.tensor([[*rendered, *step["response_ids"].tolist()]])
            with torch.no_grad():
                scores = torch.log_softmax(model(whole).logits[0, len(rendered) - 1 : -1].float(), -1)
            own = scores.gather(1, whole[0, len(rendered) :, None])[:, 0].numpy()
            np.testing.assert_allclose(step["response_logprobs"], own, atol=LOGPROB_LIMIT[kind])
            assert step["sampling"]["logprobs_mode"] == "raw"


def test_words_of_a_relayed_stream_come_while_the_engine_works(service: Service, engine: tuple[str, str]) -> None:
    kind, _ = engine
    if kind != "vllm":
        pytest.skip("this engine's chat stream tells no ids, so the whole answer is taken")
    # On a machine that gives nobody time, vLLM puts together what its server has not sent yet: then a longer answer.
    assert any(_words_come_early(service, f"timed-{kind}-{n}", n) for n in (200, 400, 800, 1600, 3200))


def _words_come_early(service: Service, uid: str, n: int) -> bool:
    """Ask for n tokens; whether the first tenth of them was there before half of the time was over."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count."}], "max_tokens": n, "stream": True}
    body |= {"temperature": 0.8, "ignore_eos": True}
    began = time.monotonic()
    at: list[float] = []
    with httpx.stream("POST", f"{service.base_url}/{uid}/task/v1/chat/completions", json=body, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and '"content"' in line:
                at.append(time.monotonic() - began)
    (step,) = steps_of(service, uid)
    assert step["n_response_tokens"] == n
    assert step["stream_mode"] == "relay"
    return len(at) > 20 and at[len(at) // 10] < 0.5 * at[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_messages_agents_with_tools_keep_their_ids(service: Service, engine: tuple[str, str], stream: bool) -> None:
    """Claude's dialect in, this engine out: the call that it makes and the ids that it sampled."""
    import anthropic

    kind, _ = engine
    uid = f"messages-{kind}-{stream}"
    request: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 60,
        "system": "You work on files.",
        "messages": [{"role": "user", "content": "Read letter.md"}],
        "tools": [
            {
                "name": "read_file",
                "description": "Return the text of a file.",
                "input_schema": TOOLS[0]["function"]["parameters"],
            }
        ],
        "tool_choice": {"type": "any"},
    }
    with anthropic.Anthropic(base_url=f"{service.base_url}/{uid}/task", api_key="none", timeout=300) as client:
        if stream:
            with client.messages.stream(**request) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**request)
    (step,) = steps_of(service, uid)
    assert step["token_source"] == "engine" and step["mismatch"] is None
    assert step["n_response_tokens"] == len(step["response_logprobs"]) == answer.usage.output_tokens
    assert step["n_prompt_tokens"] == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    calls = [block for block in answer.content if block.type == "tool_use"]
    if calls:
        stored = step["response_message"]["tool_calls"]
        assert [call["function"]["name"] for call in stored] == [block.name for block in calls] == ["read_file"]


def test_several_choices_are_siblings_with_their_own_ids(service: Service, engine: tuple[str, str]) -> None:
    from openai import OpenAI

    kind, _ = engine
    with OpenAI(base_url=f"{service.base_url}/n-{kind}/task/v1", api_key="none", timeout=300) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=5, n=2, temperature=1.0
        )
    steps = steps_of(service, f"n-{kind}")
    assert len(steps) == len(answer.choices) == 2
    tokenizer = load_tokenizer()
    for step, choice in zip(steps, answer.choices, strict=True):
        assert tokenizer.decode(step["response_ids"].tolist()).strip() == (choice.message.content or "").strip()
        assert len(step["response_logprobs"]) == len(step["response_ids"])
