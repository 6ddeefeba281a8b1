"""Prefills, echoed prompts, thinking sent back and refused fields, with the official clients."""

from __future__ import annotations

from typing import Any

import anthropic
import numpy as np
import pytest
from starlette.responses import JSONResponse

from core.ingest.drafts import drafts_of_call
from tests.gateway.conftest import script
from tests.gateway.upstream import Upstream, chat_answer, completions_answer

# Thinking


@pytest.mark.parametrize("stream", [False, True])
def test_every_thinking_block_has_a_signature_of_its_own(scripted, process, stream: bool) -> None:
    script(process, default={"reasoning": "Hm.", "content": "Yes."})
    client = anthropic.Anthropic(base_url=scripted.root, api_key="x", max_retries=0)
    request = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "well?"}]}
    signatures = []
    for _ in range(3):
        if stream:
            with client.messages.stream(**request) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**request)
        (thinking,) = [block for block in answer.content if block.type == "thinking"]
        assert thinking.thinking == "Hm."
        signatures.append(thinking.signature)
    assert len(set(signatures)) == 3 and all(signatures)


def test_thinking_sent_back_by_its_id_alone_is_read_from_the_journal(scripted, process) -> None:
    engine = script(process, default={"reasoning": "Think of 7.", "content": "Seven."})
    client = scripted.sdk()
    first = client.responses.create(model="m", input="a number?")
    (thought,) = [item for item in first.output if item.type == "reasoning"]
    talk = [
        {"role": "user", "content": "a number?"},
        {"type": "reasoning", "id": thought.id, "summary": []},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "why?"},
    ]
    client.responses.create(model="m", input=talk)
    rows = engine.get("/__log").json()["requests"]
    before, prompt = [*rows[-2]["prompt_ids"], *rows[-2]["choices"][0]["response_ids"]], rows[-1]["prompt_ids"]
    assert prompt[: len(before)] == before
    talk[1]["id"] = "rs_from_elsewhere"
    client.responses.create(model="m", input=talk)
    assert "reasoning_content" not in engine.get("/__log").json()["requests"][-1]["body"]["messages"][1]
    assert scripted.records()[-1]["dropped_fields"] == ["input.reasoning"]


def test_a_prefill_is_gone_on_with(scripted, process) -> None:
    engine = script(process, default={"content": " are blue."})
    client = anthropic.Anthropic(base_url=scripted.root, api_key="x", max_retries=0)
    talk = [{"role": "user", "content": "roses?"}, {"role": "assistant", "content": "Violets"}]
    answer = client.messages.create(model="m", max_tokens=50, messages=talk)
    assert answer.content[0].text == " are blue."
    (row,) = engine.get("/__log").json()["requests"]
    prompt = engine.post("/detokenize", json={"tokens": row["prompt_ids"]}).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nViolets")
    counted = client.messages.count_tokens(model="m", messages=talk).input_tokens
    assert counted == len(row["prompt_ids"]) == answer.usage.input_tokens


def test_an_engine_that_cannot_go_on_with_a_prefill_is_not_asked_to_and_the_step_says_so(
    make_gateway, upstream: Upstream
) -> None:
    upstream.owner = "somebody"
    try:
        gateway = make_gateway(upstream)
        talk = [{"role": "user", "content": "roses?"}, {"role": "assistant", "content": "Violets"}]
        gateway.http.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": talk}).raise_for_status()
    finally:
        upstream.owner = "vllm"
    assert "continue_final_message" not in upstream.last.body
    assert gateway.records()[0]["dropped_fields"] == ["messages.prefill"]


# Echo


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_reaches_the_agent_and_not_the_engine(gateway, upstream: Upstream, stream: bool) -> None:
    def reply(seen: Any) -> dict[str, Any]:
        # As vLLM does it: with ids asked for, the echo is left out.
        assert "echo" not in seen.body or not seen.body.get("return_token_ids")
        return completions_answer(" upon a time")

    upstream.reply = reply
    request = {"model": "policy", "prompt": "Once", "echo": True, "max_tokens": 2}
    if stream:
        chunks = gateway.sdk().completions.create(**request, stream=True)
        text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    else:
        text = gateway.sdk().completions.create(**request).choices[0].text
    assert text == "Once upon a time"
    assert upstream.last.body["return_token_ids"] is True


def test_each_choice_of_several_prompts_echoes_its_own(scripted, process) -> None:
    script(process, default={"content": "!"})
    answer = scripted.sdk().completions.create(model="m", prompt=["a", "b"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["a!", "a!", "b!", "b!"]


def test_echoed_log_probs_are_asked_of_the_engine_without_ids(gateway, upstream: Upstream) -> None:
    echoed = completions_answer("ab hello")
    echoed["choices"][0]["logprobs"] = {"tokens": ["a", "b", "c", "d"], "token_logprobs": [None, -1.0, -0.1, -0.2]}
    for name in ("token_ids", "prompt_token_ids"):
        del echoed["choices"][0][name]
    upstream.reply = echoed
    answer = gateway.sdk().completions.create(model="policy", prompt="ab", echo=True, logprobs=1, max_tokens=2)
    assert answer.choices[0].logprobs.token_logprobs == [None, -1.0, -0.1, -0.2]
    assert upstream.last.body["echo"] is True and "return_token_ids" not in upstream.last.body
    assert gateway.records()[0]["request"]["echo"] is True


@pytest.mark.parametrize("stream", [False, True])
def test_log_probs_of_an_echoed_prompt_reach_the_agent_and_the_step_has_those_of_the_answer(
    scripted, process, stream: bool
) -> None:
    engine = script(process, default={"content": " upon a time"})
    prompts = ["Once", "There"]
    answer = scripted.sdk().completions.create(
        model="policy", prompt=prompts, n=2, echo=True, logprobs=1, stream=stream, max_tokens=9
    )
    logprobs_of: dict[int, list[Any]] = {}
    for piece in answer if stream else [answer]:
        for choice in piece.choices:
            logprobs_of.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs if choice.logprobs else [])
    (row,) = engine.get("/__log").json()["requests"]
    (record,) = scripted.records()
    steps = drafts_of_call(record, "segment", 0)
    assert len(steps) == len(row["choices"]) == 4
    for step, choice in zip(steps, row["choices"], strict=True):
        n_prompt = len(choice["prompt_ids"])
        entries = logprobs_of[choice["index"]]
        assert len(entries) == n_prompt + len(choice["response_ids"])
        assert entries[0] is None and None not in entries[1:]
        assert entries[n_prompt:] == choice["logprobs"]
        assert (step.status, step.mismatch) == ("ok", None)
        assert np.array_equal(step.prompt_ids, choice["prompt_ids"])
        assert np.array_equal(step.response_ids, choice["response_ids"])
        assert np.array_equal(np.float32(step.response_logprobs), np.float32(choice["logprobs"]))
        assert step.response_message == {"role": "assistant", "content": " upon a time"}


# Refusals


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": {"message": "not served", "type": "invalid_request_error", "param": "response_format"}},
        {"detail": [{"loc": ["body", "response_format"], "msg": "bad"}]},
        {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_agent_itself_asked_for_is_refused_once(gateway, upstream: Upstream, refusal, stream: bool) -> None:
    upstream.reply = JSONResponse(refusal, 400)
    answer = gateway.chat(response_format={"type": "nonsense"}, stream=stream)
    assert answer.status_code == 400
    assert len(upstream.seen) == 1


def test_what_we_ask_for_beyond_that_is_taken_back_when_it_is_named(gateway, upstream: Upstream) -> None:
    def reply(seen: Any) -> Any:
        if "return_token_ids" in seen.body:
            return JSONResponse({"error": {"message": "unknown", "param": "return_token_ids"}}, 400)
        return chat_answer()

    upstream.reply = reply
    assert gateway.chat().status_code == 200
    assert len(upstream.seen) == 2 and upstream.last.body["logprobs"] is True
