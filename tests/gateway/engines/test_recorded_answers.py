"""What real servers answered (``tests/real_engines/record.py``), read as the gateway reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.gateway.engines.flavours import FLAVOURS, TRANSFORMERS, by_owner, by_refusal, prompt_text
from core.serving.tokenizer import load_tokenizer
from core.tokens import extract_tokens
from core.types import TokenSource
from tests.real_engines.record import COMPLETION, HELLO

RECORDED = Path(__file__).parent / "recorded"
RECORDINGS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED.glob("*.json"))}
TELLING = ("vllm", "sglang", "llamacpp")
WHOLE = ("chat", "chat_ended", "chat_n", "chat_tools", "completions", "completions_n")


def choices() -> list[Any]:
    return [
        pytest.param(name, exchange, index, id=f"{name}-{exchange}-{index}")
        for name in TELLING
        for exchange in WHOLE
        for index in range(len(RECORDINGS[name]["exchanges"][exchange]["response"]["choices"]))
    ]


def text_of(choice: dict[str, Any]) -> str:
    """What the choice says in text, where it holds all of it."""
    return choice["text"] if "text" in choice else choice["message"]["content"]


def test_every_kind_that_could_be_run_here_is_recorded() -> None:
    assert set(RECORDINGS) == {*TELLING, "transformers"}
    for name, recording in RECORDINGS.items():
        assert recording["flavour"] == name
        assert recording["version"]


@pytest.mark.parametrize("name", TELLING)
def test_an_engine_is_known_by_its_model_list(name: str) -> None:
    assert by_owner(RECORDINGS[name]["models"]) is FLAVOURS[name]
    assert RECORDINGS[name]["findings"]["logprobs"] == FLAVOURS[name].logprobs


def test_transformers_serve_is_known_by_its_refusal() -> None:
    recording = RECORDINGS["transformers"]
    assert by_owner(recording["models"]) is None
    assert by_refusal(recording["refusal"]) is TRANSFORMERS


@pytest.mark.parametrize(("name", "exchange", "index"), choices())
def test_ids_and_log_probs_are_the_answer_s(name: str, exchange: str, index: int) -> None:
    recorded = RECORDINGS[name]["exchanges"][exchange]
    answer, tokenizer = recorded["response"], load_tokenizer()
    tokens = extract_tokens(answer, index, recorded["dialect"])
    choice = answer["choices"][index]
    assert tokens.mismatch is None
    assert tokens.token_source in (TokenSource.ENGINE, TokenSource.LOGPROBS)
    assert tokens.response_ids is not None and tokens.response_logprobs is not None
    assert len(tokens.response_ids) == len(tokens.response_logprobs)
    assert all(value <= 0 for value in tokens.response_logprobs)
    text = tokenizer.decode(tokens.response_ids)
    # A parser takes a call out of what is said, even one that was cut off: the ids still have it.
    if not text.startswith("<tool_call>"):
        # llama.cpp takes white space off the ends of what a chat says; the ids still have it.
        ends = str.strip if name == "llamacpp" else str
        assert ends(text) == ends(text_of(choice))
    elif choice["finish_reason"] == "tool_calls":
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] == "get_weather"
        assert call["function"]["name"] == "get_weather"
    if choice["finish_reason"] in ("stop", "tool_calls"):
        assert tokens.response_ids[-1] == tokenizer.token_id("<|im_end|>")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_prompt_ids_are_the_rendered_prompt_s(name: str) -> None:
    exchanges, tokenizer = RECORDINGS[name]["exchanges"], load_tokenizer()
    for exchange in ("chat", "chat_n"):
        tokens = extract_tokens(exchanges[exchange]["response"], 0, "chat")
        assert tokens.prompt_ids == tokenizer.encode(tokenizer.render(HELLO))
    tokens = extract_tokens(exchanges["completions"]["response"], 0, "completions")
    assert tokens.prompt_ids == tokenizer.encode(COMPLETION["prompt"])


def test_llamacpp_tells_the_prompt_as_text() -> None:
    exchanges, tokenizer = RECORDINGS["llamacpp"]["exchanges"], load_tokenizer()
    assert prompt_text(exchanges["chat"]["response"]) == tokenizer.render(HELLO)
    assert prompt_text(exchanges["completions"]["response"]) == COMPLETION["prompt"]
    assert extract_tokens(exchanges["chat"]["response"], 0, "chat").prompt_ids is None
    # One drawer for several choices can't be every choice's.
    assert extract_tokens(exchanges["chat_n"]["response"], 1, "chat").token_source == TokenSource.LOGPROBS


def test_llamacpp_s_log_probs_that_end_before_a_stop_word_are_marked() -> None:
    answer = RECORDINGS["llamacpp"]["exchanges"]["chat_stop_word"]["response"]
    tokens = extract_tokens(answer, 0, "chat")
    assert len(tokens.response_ids) == answer["usage"]["completion_tokens"] > len(tokens.response_logprobs)
    assert tokens.mismatch == f"{len(tokens.response_ids)} response ids, {len(tokens.response_logprobs)} log-probs"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_stop_word_leaves_ids_and_log_probs_whole(name: str) -> None:
    answer = RECORDINGS[name]["exchanges"]["chat_stop_word"]["response"]
    tokens = extract_tokens(answer, 0, "chat")
    assert tokens.mismatch is None
    # The text ends before the stop word, the ids do not.
    assert load_tokenizer().decode(tokens.response_ids).startswith(answer["choices"][0]["message"]["content"])


def test_transformers_serve_tells_text_only() -> None:
    for name, exchange in RECORDINGS["transformers"]["exchanges"].items():
        if exchange["status"] == 200 and "response" in exchange:
            tokens = extract_tokens(exchange["response"], 0, exchange["dialect"])
            assert tokens.token_source == TokenSource.NONE, name
            assert tokens.mismatch is None


def chunks(exchange: dict[str, Any]) -> list[dict[str, Any]]:
    lines = exchange["stream"].splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("name", TELLING)
@pytest.mark.parametrize("exchange", ["chat_stream", "chat_tools_stream", "completions_stream"])
def test_streams_tell_ids_where_the_flavour_says_so(name: str, exchange: str) -> None:
    recorded = RECORDINGS[name]["exchanges"][exchange]
    texts = [
        extract_tokens(chunk, 0, recorded["dialect"]).response_ids or []
        for chunk in ({**chunk, "choices": chunk["choices"]} for chunk in chunks(recorded))
        if chunk["choices"]
    ]
    n_ids = sum(map(len, texts))
    if recorded["dialect"] in FLAVOURS[name].streams_ids:
        assert not recorded["refusals"]
        assert n_ids == recorded["request"]["max_tokens"]
    else:
        assert n_ids == 0 or name == "llamacpp"
