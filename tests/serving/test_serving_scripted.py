from __future__ import annotations

import json
import time

import httpx
import openai
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.serving.faults import BODY, TRANSPORT
from core.serving.script import Script
from core.serving.scripted import scripted_logprob
from core.serving.tokenizer import load_tokenizer
from tests.effort import settings
from tests.serving.serving_client import IDS, TOOLS, Client
from tests.serving.serving_strategies import CALLS, TEXT

HELLO = [{"role": "user", "content": "hello"}]
CALL = {"name": "list_files", "arguments": {"path": "."}}
FULL = {"content": "Looking.", "reasoning": "First the list.", "tool_calls": [CALL, CALL]}


def collect(stream) -> dict:
    """What a client gathers from a stream."""
    out = {"content": "", "calls": {}, "ids": [], "logprobs": [], "finish": None, "usage": None, "prompt": None}
    for chunk in stream:
        out["prompt"] = getattr(chunk, "prompt_token_ids", None) or out["prompt"]
        out["usage"] = chunk.usage or out["usage"]
        for choice in chunk.choices:
            out["content"] += choice.delta.content or ""
            out["finish"] = choice.finish_reason or out["finish"]
            out["ids"] += getattr(choice, "token_ids", None) or []
            out["logprobs"] += [e.logprob for e in choice.logprobs.content] if choice.logprobs else []
            for call in choice.delta.tool_calls or ():
                slot = out["calls"].setdefault(call.index, {"name": "", "arguments": ""})
                slot["name"] += call.function.name or ""
                slot["arguments"] += call.function.arguments or ""
    return out


def test_turns_tools_and_ids_through_the_sdk(scripted: Client):
    scripted.script({"rules": [{"when": {"turn": 0, "has_tools": True}, "reply": FULL}], "default": {"content": "Ok."}})
    first = scripted.chat(HELLO, tools=TOOLS, logprobs=True, top_logprobs=2)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [c.function.name for c in choice.message.tool_calls] == ["list_files", "list_files"]
    assert choice.message.reasoning == "First the list."
    assert first.usage.completion_tokens == len(choice.token_ids) == len(choice.logprobs.content)
    assert first.usage.prompt_tokens == len(first.prompt_token_ids)
    tokenizer = load_tokenizer()
    assert tokenizer.decode(choice.token_ids, skip_special=False).endswith("</tool_call><|im_end|>")
    for position, (i, entry) in enumerate(zip(choice.token_ids, choice.logprobs.content, strict=True)):
        assert entry.logprob == scripted_logprob(0, position, i)
        assert bytes(entry.bytes) == tokenizer.token_bytes[i]
        assert len(entry.top_logprobs) == 2
    results = [{"role": "tool", "tool_call_id": c.id, "content": "a.txt"} for c in choice.message.tool_calls]
    second = scripted.chat([*HELLO, choice.message, *results], tools=TOOLS)
    known = first.prompt_token_ids + choice.token_ids
    assert second.prompt_token_ids[: len(known)] == known
    assert second.choices[0].message.content == "Ok."
    rows = scripted.log()
    assert [r["choices"][0]["response_ids"] for r in rows] == [choice.token_ids, second.choices[0].token_ids]
    assert [r["prompt_ids"] for r in rows] == [first.prompt_token_ids, second.prompt_token_ids]
    assert rows[0]["choices"][0]["logprobs"] == [e.logprob for e in choice.logprobs.content]
    assert rows[0]["headers"]["authorization"] == "set"


def test_nothing_is_told_unasked(scripted: Client):
    scripted.script({})
    raw = scripted.http.post("/v1/chat/completions", json={"model": "m", "messages": HELLO}).json()
    assert raw["prompt_token_ids"] is None and raw["choices"][0]["token_ids"] is None
    assert raw["choices"][0]["logprobs"] is None
    with scripted.http.stream(
        "POST", "/v1/chat/completions", json={"model": "m", "messages": HELLO, "stream": True}
    ) as response:
        text = response.read().decode()
    assert "token_ids" not in text and "usage" not in text and text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("chunk_tokens", [1, 3, 1000])
def test_stream_carries_the_same_tokens_as_the_whole(scripted: Client, chunk_tokens: int):
    rule = {"reply": {**FULL, "content": "Zoë 🙂 漢字"}, "chunk_tokens": chunk_tokens}
    scripted.script({"rules": [rule]})
    whole = scripted.chat(HELLO, tools=TOOLS, logprobs=True)
    got = collect(scripted.chat(HELLO, tools=TOOLS, logprobs=True, stream=True, stream_options={"include_usage": True}))
    choice = whole.choices[0]
    assert got["ids"] == choice.token_ids
    assert got["logprobs"] == [e.logprob for e in choice.logprobs.content]
    assert got["prompt"] == whole.prompt_token_ids
    assert got["content"] == "Zoë 🙂 漢字" and got["finish"] == "tool_calls"
    assert got["usage"] == whole.usage
    assert [got["calls"][n] for n in sorted(got["calls"])] == [
        {"name": c.function.name, "arguments": c.function.arguments} for c in choice.message.tool_calls
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXT, CALLS, TEXT), min_size=1, max_size=3), st.booleans())
def test_every_prompt_extends_the_one_before_over_http(scripted: Client, turns, stream):
    """Whatever a script says: a client that echoes the message gets a prompt that begins with prompt + answer."""
    # a reply that spells a turn mark is cut there or loses it when decoded: no message can carry it back
    turns = json.loads(json.dumps(turns).replace("<|im_start|>", "").replace("<|im_end|>", ""))
    assume(not any(content.startswith("<think>") for content, _, _ in turns))  # thinking that never ends
    rules = [
        {"when": {"turn": n}, "reply": {"content": content, "tool_calls": calls}, "chunk_tokens": 2}
        for n, (content, calls, _) in enumerate(turns)
    ]
    scripted.script({"rules": rules, "default": {"content": ""}})
    messages: list = [{"role": "user", "content": "go"}]
    known: list[int] = []
    for _, _, result in [*turns, ("", [], "")]:
        whole = scripted.chat(messages, tools=TOOLS)
        choice = whole.choices[0]
        if stream:
            got = collect(scripted.chat(messages, tools=TOOLS, stream=True))
            assert (got["prompt"], got["ids"]) == (whole.prompt_token_ids, choice.token_ids)
            assert got["content"] == (choice.message.content or "")
        assert whole.prompt_token_ids[: len(known)] == known
        known = whole.prompt_token_ids + choice.token_ids
        answered = [{"role": "tool", "tool_call_id": c.id, "content": result} for c in choice.message.tool_calls or ()]
        messages = [*messages, choice.message, *(answered or [{"role": "user", "content": result}])]


def test_rules_in_order_times_and_conditions(scripted: Client):
    scripted.script(
        {
            "rules": [
                {"when": {"last_contains": "hello"}, "reply": {"content": "once"}, "times": 1},
                {"when": {"model": "big-*"}, "reply": {"content": "glob"}},
                {"when": {"headers": {"x-agent": "cli*"}}, "reply": {"content": "header"}},
                {"when": {"min_turn": 2}, "reply": {"content": "late"}},
                {"when": {"contains": "secret word"}, "reply": {"content": "found"}},
            ],
            "default": {"reply": {"content": "default"}},
        }
    )

    def ask(messages, model="m", headers=None):
        body = {"model": model, "messages": messages}
        return scripted.http.post("/v1/chat/completions", json=body, headers=headers or {}).json()["choices"][0][
            "message"
        ]["content"]

    assert [ask(HELLO), ask(HELLO)] == ["once", "default"]
    assert ask(HELLO, model="big-1") == "glob"
    assert ask(HELLO, headers={"X-Agent": "cli/1"}) == "header"
    bot = {"role": "assistant", "content": "x"}
    assert ask([*HELLO, bot, *HELLO, bot, *HELLO]) == "late"
    assert ask([{"role": "system", "content": "the secret word"}, *HELLO]) == "found"
    assert [r["rule"] for r in scripted.log()] == [0, -1, 1, 2, 3, 4]


def test_variants_differ_between_siblings_and_hold_within_one(scripted: Client):
    scripted.script({"rules": [{"variants": [{"content": f"way {n}"} for n in range(4)]}]})

    def ways(uid: str) -> set[str]:
        headers = {"X-Trajectory-Uid": uid}
        return {scripted.chat(HELLO, extra_headers=headers).choices[0].message.content for _ in range(3)}

    seen = [ways(f"t{n}") for n in range(24)]
    assert all(len(s) == 1 for s in seen)
    assert len(set.union(*seen)) == 4
    assert {scripted.chat(HELLO, seed=5).choices[0].message.content for _ in range(3)} != set()
    unnamed = {scripted.chat(HELLO).choices[0].message.content for _ in range(4)}
    assert len(unnamed) == 4
    several = scripted.chat(HELLO, n=4)
    assert len({c.message.content for c in several.choices}) == 4


def test_limits_of_the_request_hold(scripted: Client):
    scripted.script({"default": {"content": "one two three four five six"}})
    cut = scripted.chat(HELLO, max_tokens=3, logprobs=True).choices[0]
    assert cut.finish_reason == "length" and len(cut.token_ids) == len(cut.logprobs.content) == 3
    stopped = scripted.chat(HELLO, stop=["three"]).choices[0]
    assert stopped.finish_reason == "stop" and stopped.message.content == "one two "
    assert load_tokenizer().decode(stopped.token_ids) == "one two three"
    scripted.script({"context_length": 20})
    with pytest.raises(openai.BadRequestError) as caught:
        scripted.chat([{"role": "user", "content": "word " * 50}])
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"


def test_completions_take_text_and_ids(scripted: Client):
    scripted.script({"rules": [{"when": {"route": "completions"}, "reply": {"content": " and so on"}}]})
    tokenizer = load_tokenizer()
    ids = tokenizer.encode("Once upon")
    by_ids = scripted.sdk.completions.create(model="m", prompt=ids, logprobs=1, extra_body=IDS)
    by_text = scripted.sdk.completions.create(model="m", prompt="Once upon", logprobs=1, extra_body=IDS)
    assert by_ids.choices[0].prompt_token_ids == by_text.choices[0].prompt_token_ids == ids
    assert by_ids.choices[0].text == " and so on"
    logprobs = by_ids.choices[0].logprobs
    assert len(logprobs.token_logprobs) == len(by_ids.choices[0].token_ids) == by_ids.usage.completion_tokens
    pieces, got, prompt = [], [], None
    for chunk in scripted.sdk.completions.create(model="m", prompt=ids, stream=True, extra_body=IDS):
        pieces.append(chunk.choices[0].text)
        got += chunk.choices[0].token_ids
        prompt = getattr(chunk.choices[0], "prompt_token_ids", None) or prompt
    assert ("".join(pieces), got, prompt) == (" and so on", by_ids.choices[0].token_ids, ids)


def test_malformed_tool_call_stays_text(scripted: Client):
    scripted.script({"default": {"content": "Hm.", "tool_calls": [{"name": "f", "arguments": "{not json"}]}})
    choice = scripted.chat(HELLO, tools=TOOLS).choices[0]
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    assert "{not json" in choice.message.content


def test_models_health_tokenize(scripted: Client):
    scripted.script({"model": "named"})
    assert scripted.sdk.models.list().data[0].id == "named"
    assert scripted.http.get("/health").status_code == 200
    counted = scripted.http.post("/tokenize", json={"messages": HELLO}).json()
    answered = scripted.chat(HELLO)
    assert counted["tokens"] == answered.prompt_token_ids and counted["count"] == len(counted["tokens"])
    text = scripted.http.post("/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert scripted.http.get("/v1/nothing").status_code == 404
    assert scripted.http.get("/v1/completions").status_code == 405


# Faults


def faulty(scripted: Client, fault: str, **kwargs):
    scripted.script({"rules": [{"fault": fault, "times": 1, "reply": FULL, "chunk_tokens": 1}]})
    return scripted.chat(HELLO, tools=TOOLS, logprobs=True, **kwargs)


def test_status_faults_are_openai_errors(scripted: Client):
    with pytest.raises(openai.RateLimitError):
        faulty(scripted, "status:429")
    with pytest.raises(openai.InternalServerError):
        faulty(scripted, "status:503")
    assert scripted.chat(HELLO).choices[0].message.content == "Done."
    assert scripted.log()[0]["status"] == 503


@pytest.mark.parametrize("fault", ["disconnect", "disconnect_body"])
def test_broken_connections(scripted: Client, fault: str):
    with pytest.raises(openai.APIConnectionError):
        faulty(scripted, fault)
    assert scripted.chat(HELLO).choices[0].message.content == "Done."


def test_broken_stream(scripted: Client):
    with pytest.raises(httpx.RemoteProtocolError):
        collect(faulty(scripted, "disconnect_stream:3", stream=True))
    with pytest.raises(openai.APIError, match="scripted failure"):
        collect(faulty(scripted, "error_in_stream", stream=True))
    with pytest.raises(ValueError, match=r"Expecting property name"):
        collect(faulty(scripted, "garbage", stream=True))


def test_hang_ends_when_the_client_leaves(scripted: Client):
    with pytest.raises(openai.APITimeoutError):
        faulty(scripted, "hang", timeout=0.3)
    assert scripted.chat(HELLO).choices[0].message.content == "Done."


def test_delays(scripted: Client):
    scripted.script({"rules": [{"delay_s": 0.2, "reply": {"content": "late"}}]})
    begun = time.monotonic()
    scripted.chat(HELLO)
    assert time.monotonic() - begun >= 0.2
    begun = time.monotonic()
    assert collect(faulty(scripted, "slow_stream:0.02", stream=True))["content"] == "Looking."
    assert time.monotonic() - begun >= 0.3


def test_spoiled_bodies(scripted: Client):
    missing = faulty(scripted, "missing_ids")
    assert not hasattr(missing, "prompt_token_ids") and not hasattr(missing.choices[0], "token_ids")
    assert faulty(scripted, "missing_logprobs").choices[0].logprobs is None
    bad = faulty(scripted, "bad_lengths").choices[0]
    assert len(bad.logprobs.content) == len(bad.token_ids) - 1
    wrong = faulty(scripted, "bad_usage")
    assert wrong.usage.completion_tokens == len(wrong.choices[0].token_ids) + 1
    assert faulty(scripted, "empty_choices").choices == []
    garbage = faulty_raw(scripted, "garbage")
    assert garbage.status_code == 200 and garbage.text.startswith("<html>")
    assert faulty_raw(scripted, "wrong_shape").json() == {"unexpected": True}


def faulty_raw(scripted: Client, fault: str) -> httpx.Response:
    scripted.script({"rules": [{"fault": fault}]})
    return scripted.http.post("/v1/chat/completions", json={"model": "m", "messages": HELLO})


def test_stream_that_loses_ids_and_end(scripted: Client):
    whole = faulty(scripted, "missing_logprobs").choices[0].token_ids
    got = collect(faulty(scripted, "stream_lost_ids", stream=True))
    assert 0 < len(got["ids"]) < len(whole)
    scripted.script({"rules": [{"fault": "no_done"}]})
    body = {"model": "m", "messages": HELLO, "stream": True}
    assert "[DONE]" not in scripted.http.post("/v1/chat/completions", json=body).text


def test_every_fault_has_a_name_that_a_script_may_use():
    for name in (*TRANSPORT, *BODY):
        assert Script.parse({"rules": [{"fault": name}]}).rules[0].fault == name
    with pytest.raises(InvalidInput, match="no fault 'explode'") as caught:
        Script.parse({"rules": [{"fault": "explode"}]})
    assert caught.value.field == "rules.0.fault"
    with pytest.raises(InvalidInput, match=r"rules\.0\.when\.turm"):
        Script.parse({"rules": [{"when": {"turm": 1}}]})


def test_bad_requests_name_the_field(scripted: Client):
    scripted.script({})
    cases = [
        ({"messages": "x"}, "messages"),
        ({"messages": HELLO, "n": 0}, "n"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
        ({"messages": HELLO, "presence_penalty": 9}, "presence_penalty"),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "oracle", "content": ""}]}, "messages"),
    ]
    for body, field in cases:
        answer = scripted.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert scripted.http.post("/v1/chat/completions", content=b"{").status_code == 400
    assert scripted.http.post("/v1/completions", json={"prompt": [10**9]}).json()["error"]["param"] == "prompt"


def test_fast_script_answers_alike_with_the_same_bytes(scripted: Client):
    scripted.script({"fast": True, "rules": [{"when": {"turn": 0}, "reply": {"n_tokens": 50}}]})
    body = {"model": "m", "messages": HELLO, "logprobs": True, **IDS}
    answers = [scripted.http.post("/v1/chat/completions", json=body) for _ in range(3)]
    assert len({a.content for a in answers}) == 1
    choice = answers[0].json()["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 50
    plain = scripted.http.post("/v1/chat/completions", json={"model": "m", "messages": HELLO}).json()
    assert plain["choices"][0]["token_ids"] is None
    streamed = scripted.chat(HELLO, stream=True, stream_options={"include_usage": True})
    assert len(collect(streamed)["ids"]) == 50
