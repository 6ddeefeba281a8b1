"""LiteLLM for real, its provider API pointed at a server of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest
from starlette.responses import JSONResponse

from core.gateway.providers.engine import names_provider
from core.ingest.drafts import drafts_of_call
from core.tokens import extract_tokens
from tests.gateway.upstream import chat_answer, completions_answer


@pytest.fixture
def gateway(make_gateway, upstream, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    gateway = make_gateway(timeout_s=60.0)
    gateway.engines.add("hosted", "openai/policy", kind="litellm", api_base=upstream.base_url)
    return gateway


OWN = {"authorization": "Bearer agents-own-provider-key"}


def test_a_provider_answers_through_litellm(gateway, upstream):
    answer = gateway.chat(headers=OWN, model="gpt-whatever", temperature=0.5, custom_knob=3)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert upstream.last.headers["authorization"] == OWN["authorization"]
    assert upstream.last.body["model"] == "policy"
    assert upstream.last.body["temperature"] == 0.5
    assert upstream.last.body["custom_knob"] == 3
    (record,) = gateway.records()
    assert (record["engine_kind"], record["model"], record["http_status"]) == ("litellm", "openai/policy", 200)
    tokens = extract_tokens(record["response"], 0, "chat")
    assert tokens.prompt_ids == [1, 2, 3, 4]
    assert tokens.response_ids == [7, 8, 9]
    assert tokens.response_logprobs == [-0.5] * 3
    assert b"agents-own-provider-key" not in next(gateway.directory.glob("*.seg")).read_bytes()
    assert "token_ids" not in answer.text


def test_a_stream_through_litellm_is_made_from_the_whole_answer(gateway, upstream):
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    upstream.reply = chat_answer(None, tool_calls=calls)
    sdk = gateway.sdk(key="agents-own-provider-key")
    with sdk.chat.completions.stream(model="openai/policy", messages=[{"role": "user", "content": "hi"}]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"x": 1}'
    assert not upstream.last.body.get("stream")
    tokens = extract_tokens(gateway.records()[0]["response"], 0, "chat")
    assert tokens.response_ids == [7, 8, 9]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_tools_reach_the_provider_as_they_are(gateway, upstream, choice):
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}} for name in ("c1", "c2")
    ]
    upstream.reply = chat_answer(None, tool_calls=calls)
    request = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": True}
    answer = gateway.chat(headers=OWN, **request)
    assert answer.status_code == 200, answer.text
    assert [call["id"] for call in answer.json()["choices"][0]["message"]["tool_calls"]] == ["c1", "c2"]
    assert {name: upstream.last.body[name] for name in request} == request
    assert "mcp" not in str(upstream.last.body)


FIELDS = {
    "frequency_penalty": 0.1, "logit_bias": {"5": 1}, "logprobs": True, "max_tokens": 9, "n": 2,
    "presence_penalty": 0.1, "reasoning_effort": "low", "response_format": {"type": "json_object"}, "seed": 3,
    "service_tier": "flex", "stop": ["x"], "temperature": 0.4, "top_p": 0.9, "user": "u", "verbosity": "low",
}  # fmt: skip


@pytest.mark.parametrize(
    "model",
    ["openai/gpt-4o", "openai/gpt-5", "deepseek/deepseek-chat", "openrouter/x/y", "mistral/mistral-large-latest",
     "together_ai/x", "xai/grok-4"],
)  # fmt: skip
def test_a_field_reaches_the_provider_or_is_told_to_be_left_out_or_renamed(make_gateway, upstream, model):
    gateway = make_gateway(timeout_s=60.0)
    gateway.engines.add("hosted", model, kind="litellm", api_base=upstream.base_url, api_key="k" * 20)

    def dropped_and_renamed() -> tuple[list[str], dict[str, list[str]]]:
        record = gateway.records()[-1]
        return record["dropped_fields"], (record.get("engine_facts") or {}).get("renamed_fields", {})

    for name, value in FIELDS.items():
        assert gateway.chat(**{name: value}).status_code == 200
        dropped, renamed = dropped_and_renamed()
        if name in upstream.last.body:
            assert (dropped, renamed) == ([], {})
        elif renamed:
            assert (dropped, list(renamed)) == ([], [name])
            assert set(renamed[name]) <= upstream.last.body.keys()
        else:
            assert dropped == [name]
    gateway.chat(**FIELDS)
    dropped, renamed = dropped_and_renamed()
    assert {*dropped, *renamed} == FIELDS.keys() - upstream.last.body.keys()
    assert {name for names in renamed.values() for name in names} <= upstream.last.body.keys()


def test_what_mistral_calls_a_seed_stands_on_the_step(make_gateway, upstream):
    gateway = make_gateway(timeout_s=60.0)
    model = "mistral/mistral-large-latest"
    gateway.engines.add("hosted", model, kind="litellm", api_base=upstream.base_url, api_key="k" * 20)
    gateway.chat(seed=3, max_completion_tokens=9, temperature=0.5, presence_penalty=0.5, custom_knob=7)
    # LiteLLM would send either the seed or what it does not know.
    sent = upstream.last.body
    assert (sent["random_seed"], sent["max_tokens"], sent["custom_knob"]) == (3, 9, 7)
    (record,) = gateway.records()
    (step,) = drafts_of_call(record, "s", 0)
    assert step.metadata["renamed_fields"] == {"max_completion_tokens": ["max_tokens"], "seed": ["random_seed"]}
    assert step.metadata["dropped_fields"] == ["presence_penalty"]
    # It was sampled with what it was given, under whichever name.
    assert step.sampling.items() >= {"seed": 3, "max_completion_tokens": 9, "temperature": 0.5}.items()
    assert "presence_penalty" not in step.sampling


def test_tools_that_litellm_would_call_itself_are_the_providers(gateway, upstream):
    own = {"type": "mcp", "server_url": "litellm_proxy/mcp", "server_label": "l", "require_approval": "never"}
    assert gateway.chat(headers=OWN, tools=[own]).status_code == 200
    assert upstream.last.body["tools"] == [own]
    assert len(upstream.seen) == 1


def test_text_completions_through_litellm(gateway, upstream):
    upstream.reply = completions_answer()
    answer = gateway.sdk(key="agents-own-provider-key").completions.create(model="x", prompt="say")
    assert answer.choices[0].text == "hello"
    assert gateway.records()[0]["dialect"] == "completions"


def test_a_request_can_not_turn_litellms_own_knobs(gateway, upstream):
    knobs = {
        "api_base": "http://127.0.0.1:9/v1",
        "mock_response": "made up",
        "num_retries": 9,
        "success_callback": ["langfuse"],
    }
    answer = gateway.chat(headers=OWN, **knobs)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert len(upstream.seen) == 1


@pytest.mark.parametrize(("status", "expected"), [(401, 401), (400, 400), (429, 429), (500, 502)])
def test_provider_errors_keep_their_kind(gateway, upstream, status, expected):
    upstream.reply = JSONResponse({"error": {"message": "provider says no", "type": "x"}}, status_code=status)
    answer = gateway.chat(headers=OWN)
    assert answer.status_code == expected
    assert "provider says no" in answer.json()["error"]["message"]
    assert len(upstream.seen) == 1
    assert gateway.records()[0]["error"]["type"] == "engine_error"


def test_provider_names():
    assert names_provider("openai/gpt-5")
    assert names_provider("openrouter/meta-llama/llama-3")
    assert not names_provider("Qwen/Qwen3-8B")
    assert not names_provider("openai/")
    assert not names_provider("gpt-5")


def test_a_provider_name_that_the_engine_serves_goes_to_the_engine(make_gateway, upstream):
    upstream.models = ["openai/gpt-oss-20b"]
    gateway = make_gateway(upstream)
    assert gateway.chat(model="openai/gpt-oss-20b").status_code == 200
    assert gateway.records()[0]["engine"] == "engine"


def test_a_provider_name_that_no_engine_serves_goes_to_litellm(make_gateway, upstream, monkeypatch):
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", upstream.base_url)
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", "environment-key-0123")
    gateway = make_gateway(upstream, timeout_s=60.0)
    answer = gateway.chat(headers=OWN, model="hosted_vllm/elsewhere")
    assert answer.status_code == 200, answer.text
    assert upstream.last.body["model"] == "elsewhere"
    assert gateway.records()[0]["engine"] == "litellm"
    assert [engine["name"] for engine in gateway.engines.status()] == ["engine", "litellm"]


def test_importing_the_gateway_does_not_import_litellm():
    code = "import sys, core.gateway.app, core.gateway.providers.engine; sys.exit('litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
