"""The whole capture path against the scripted engine that ships, in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from core.serving.process import EngineProcess
from core.tokens import extract_tokens

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {
            "when": {"turn": 0, "has_tools": True},
            "reply": {"reasoning": "Sum it.", "tool_calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}]},
        },
        {"when": {"turn": 1, "has_tools": True}, "reply": {"content": "It is 5."}},
        {"when": {"last_contains": "slowly"}, "reply": {"content": "here"}, "delay_s": 0.4},
        *(
            {"when": {"last_contains": f"fault {fault}."}, "reply": {"content": "spoilt answer"}, "fault": fault}
            for fault in ("status:503", "status:500", "disconnect", "disconnect_body", "garbage", "wrong_shape",
                          "empty_choices", "hang", "missing_ids", "missing_logprobs", "bad_lengths", "bad_usage")
        ),
    ],
    "default": {"content": "plain answer"},
}  # fmt: skip


class Scripted:
    def __init__(self, process: EngineProcess) -> None:
        assert process.base_url is not None
        self.base_url = process.base_url
        self.http = httpx.Client(base_url=process.base_url.removesuffix("/v1"), timeout=30)

    def log(self) -> list[dict[str, Any]]:
        return self.http.get("/__log").json()["requests"]


@pytest.fixture
def scripted(process: EngineProcess) -> Iterator[Scripted]:
    engine = Scripted(process)
    engine.http.put("/__script", json=SCRIPT).raise_for_status()
    engine.http.delete("/__log").raise_for_status()
    yield engine
    engine.http.close()


@pytest.fixture
def gateway(make_gateway, scripted):
    gateway = make_gateway(timeout_s=2.0)
    gateway.engines.add("scripted", scripted.base_url, streaming="whole")
    return gateway


def ask(gateway, text, **kwargs):
    return gateway.chat(messages=[{"role": "user", "content": text}], **kwargs)


@pytest.mark.parametrize("mode", ["none", "whole", "relay"])
def test_a_tool_loop_is_captured_with_the_ids_that_the_engine_logged(make_gateway, scripted, mode):
    stream = mode != "none"
    gateway = make_gateway()
    gateway.engines.add("scripted", scripted.base_url, streaming=mode if stream else "auto")
    sdk = gateway.sdk(prefix="/run-1/sum")
    messages: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
    for _ in range(2):
        if stream:
            with sdk.chat.completions.stream(model="scripted-1", messages=messages, tools=TOOLS) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = sdk.chat.completions.create(model="scripted-1", messages=messages, tools=TOOLS).choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or []:
            assert call.function.name == "add"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "5"})
    assert messages[-1]["content"] == "It is 5."
    records = gateway.records()
    logged = scripted.log()
    assert len(records) == len(logged) == 2
    for record, entry in zip(records, logged, strict=True):
        assert record["identity"]["trajectory_uid"] == "run-1"
        assert record["stream_mode"] == mode
        tokens = extract_tokens(record["response"], 0, "chat")
        assert tokens.mismatch is None
        assert tokens.token_source == "engine"
        assert tokens.prompt_ids == entry["prompt_ids"]
        assert tokens.response_ids == entry["choices"][0]["response_ids"]
        assert len(tokens.response_logprobs) == len(tokens.response_ids)


def test_text_completions(make_gateway, scripted):
    gateway = make_gateway()
    gateway.engines.add("scripted", scripted.base_url)
    sdk = gateway.sdk()
    answer = sdk.completions.create(model="scripted-1", prompt="Say", max_tokens=50)
    assert answer.choices[0].text
    chunks = list(sdk.completions.create(model="scripted-1", prompt="Say", max_tokens=50, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    first, second = (extract_tokens(record["response"], 0, "completions") for record in gateway.records())
    assert (first.token_source, first.mismatch) == ("engine", None)
    assert first == second
    assert gateway.records()[1]["stream_mode"] == "relay"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("status:500", 502),
        ("status:503", 503),
        ("disconnect", 502),
        ("disconnect_body", 502),
        ("garbage", 502),
        ("wrong_shape", 502),
        ("empty_choices", 502),
        ("hang", 504),
    ],
)
def test_faults_are_clear_and_recorded(gateway, fault, status, stream):
    sdk = gateway.sdk()
    with pytest.raises(openai.APIStatusError) as caught:
        list(
            sdk.chat.completions.create(
                model="scripted-1", messages=[{"role": "user", "content": f"fault {fault}."}], stream=stream
            )
        )
    assert caught.value.status_code == status
    (record,) = gateway.records()
    assert record["error"]["message"]
    assert ask(gateway, "fine").json()["choices"][0]["message"]["content"] == "plain answer"
    assert gateway.policy.n_in_flight == 0


@pytest.mark.parametrize(
    ("fault", "source", "words"),
    [
        ("missing_ids", "bytes", None),
        ("missing_logprobs", "engine", None),
        ("bad_lengths", "engine", "log-probs"),
        ("bad_usage", "engine", "usage says"),
    ],
)
def test_spoilt_tokens_reach_the_agent_and_are_marked(gateway, fault, source, words):
    assert ask(gateway, f"fault {fault}.").status_code == 200
    tokens = extract_tokens(gateway.records()[0]["response"], 0, "chat")
    assert tokens.token_source == source
    assert (tokens.mismatch is None) if words is None else (words in tokens.mismatch)


def test_a_slow_agent_does_not_slow_the_others(gateway):
    slow = threading.Thread(target=lambda: ask(gateway, "slowly"))
    slow.start()
    for _ in range(5):
        assert ask(gateway, "quick").status_code == 200
    slow.join()
    assert len(gateway.records()) == 6
