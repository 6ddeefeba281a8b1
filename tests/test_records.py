from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import records, scrub
from core.errors import InvalidInput
from core.tokens import extract_tokens
from core.types import Identity, Tokens, TokenSource

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=5)


def call(body: dict, **changes) -> dict:
    raw = orjson.dumps(body)
    fields: dict = {
        "at": 12.5,
        "step_uid": "s1",
        "started_at": 10.0,
        "finished_at": 12.5,
        "identity": Identity(trajectory_uid="t1", metadata={"turn": "main"}),
        "dialect": "chat",
        "engine": "e",
        "engine_kind": "openai",
        "model": "m",
        "policy_version": None,
        "policy_version_end": 3,
        "stream": False,
        "stream_mode": "none",
        "client_headers": {"user-agent": "x"},
        "request": raw,
        "parsed_request": orjson.loads(raw),
        "http_status": 200,
    }
    return records.parse(records.call_record(**{**fields, **changes}))


@given(request=json_objects, response=json_objects)
def test_bodies_come_back_as_they_went_in(request, response):
    raw = orjson.dumps(response)
    record = call(request, response=raw)
    expected = {key: value for key, value in request.items() if key not in scrub.SECRET_FIELDS}
    assert record["request"] == expected
    assert record["response"] == response


def test_a_call_record_has_the_agreed_fields():
    record = call({"model": "m"}, response=None, error={"type": "engine_error", "message": "x"})
    assert set(record) == {
        "kind", "v", "at", "step_uid", "started_at", "finished_at", "identity", "dialect", "engine", "engine_kind",
        "model", "policy_version", "policy_version_end", "stream", "stream_mode", "client_headers", "request",
        "engine_added", "dropped_fields", "response", "http_status", "error", "aborted", "retry_count",
        "tokenizer_hash", "engine_dialect",
    }  # fmt: skip
    assert set(record["identity"]) == {
        "trajectory_uid", "prompt_uid", "channel", "source", "agent", "identity_source", "metadata",
    }  # fmt: skip
    assert record["policy_version"] is None
    assert record["policy_version_end"] == 3
    assert record["response"] is None


@pytest.mark.parametrize("name", sorted(scrub.SECRET_FIELDS))
def test_key_fields_leave_the_request(name):
    record = call({"model": "m", name: "canary-0123456789", "messages": []})
    assert record["request"] == {"model": "m", "messages": []}


def test_a_key_written_twice_leaves_as_well():
    raw = b'{"api_key": "canary-first", "model": "m", "api_key": "canary-second"}'
    record = call({}, request=raw, parsed_request=orjson.loads(raw))
    assert record["request"] == {"model": "m"}


def test_keys_in_what_a_log_says_of_its_call_leave_with_it():
    key = "sk-canary-4f0e8a1b"
    schema = {"type": "object", "properties": {"headers": {"type": "object"}, "api_key": {"type": "string"}}}
    function = {"name": "f", "parameters": schema}
    step = {
        "step_uid": "s",
        "sampling": {"temperature": 0.5, "extra_headers": {"Authorization": f"Bearer {key}"}, "api_key": key},
        "metadata": {"log": [{"Headers": {"x": key}, "a": 1}], "user_api_key": None, "dropped_fields": ["n"]},
        "tools": [{"type": "function", "function": function}, {"type": "mcp", "authorization": key}],
        "messages": [{"role": "user", "content": f"my key is {key}."}],
    }
    before = orjson.dumps(step)
    scrubbed = scrub.scrub_step(step)
    assert orjson.dumps(step) == before
    assert key not in orjson.dumps(scrubbed).decode()
    assert scrubbed["messages"] == [{"role": "user", "content": "my key is [secret]."}]
    assert scrubbed["sampling"] == {"temperature": 0.5}
    assert scrubbed["tools"] == [{"type": "function", "function": function}, {"type": "mcp"}]
    assert scrubbed["metadata"]["log"] == [{"a": 1}]
    assert scrubbed["metadata"]["dropped_fields"] == [
        "n", "sampling.extra_headers", "sampling.api_key", "metadata.log.Headers", "metadata.user_api_key",
        "tools.authorization",
    ]  # fmt: skip
    assert scrub.scrub_step(scrubbed)["metadata"] == scrubbed["metadata"]
    harmless = {"step_uid": "s", "metadata": {"a": 1}, "sampling": None, "tools": None, "messages": [{"api_key": "x"}]}
    assert scrub.scrub_step(harmless) == harmless


def test_a_header_is_more_than_its_key_and_a_conversation_may_name_one():
    key, session = "sk-canary-4f0e8a1b", "canary-session-7777"
    headers = {
        "Authorization": f"Bearer {key}",
        "Cookie": f'id=7; session="{session}"; Path=/',
        "Accept": "text/event-stream",
    }
    record = {
        "call": [{"headers": headers}],
        "messages": [{"password": "canary-in-words"}],
        "tools": [{"api_key": "x" * 20}],
    }
    keys = scrub.logged_secrets(record)
    assert {key, session, f"Bearer {key}"} <= set(keys)
    assert not {"text/event-stream", "canary-in-words", "x" * 20} & set(keys)
    texts = {"a": f"{key} {session} Bearer {key} text/event-stream Path=/ Bearer"}
    assert scrub.scrubbed(texts, keys) == {"a": "[secret] [secret] [secret] text/event-stream Path=/ Bearer"}
    assert scrub.logged_secrets({"messages": [], "usage": {"tokens": 3}, "rows": [1, None, "x"]}) == []
    request = {"model": "m", "extra_headers": headers}
    assert session in scrub.pop_secrets(request)[1]


@pytest.mark.parametrize("secret", ["canary-0123456789", 'canary"with\\signs/0123', "canary-ünïcode-0123"])
def test_presented_keys_are_blotted_out_everywhere(secret):
    payload_parts = {"messages": [{"role": "user", "content": f"my key is {secret}."}]}
    record = call(
        payload_parts,
        response=orjson.dumps({"error": {"message": f"wrong key {secret}"}}),
        error={"type": "engine_error", "message": f"wrong key {secret}"},
        secrets=[secret],
    )
    assert "canary" not in orjson.dumps(record).decode()
    assert record["request"]["messages"][0]["content"] == "my key is [secret]."


def test_only_allowed_headers_are_kept():
    headers = [
        (b"authorization", b"Bearer canary"),
        (b"cookie", b"canary"),
        (b"x-api-key", b"canary"),
        (b"api-key", b"canary"),
        (b"x-anything", b"canary"),
        (b"user-agent", b"agent/1"),
        (b"x-stainless-retry-count", b"1"),
    ]
    assert scrub.harmless_headers(headers) == {"user-agent": "agent/1", "x-stainless-retry-count": "1"}


def test_the_other_kinds():
    steps = records.parse(records.steps_record(at=1.0, steps=[{"step_uid": "s", "reward": None}]))
    assert steps["steps"] == [{"step_uid": "s", "reward": None}]
    register = records.parse(records.register_record(at=1.0, trajectory_uid="t", metadata={"a": 1}))
    assert (register["kind"], register["prompt_uid"], register["metadata"]) == ("register", None, {"a": 1})
    complete = records.parse(records.complete_record(at=1.0, trajectory_uid="t", reward=0.0))
    assert complete["reward"] == 0.0
    assert records.parse(records.complete_record(at=1.0, trajectory_uid="t"))["reward"] is None
    session = records.parse(records.session_record(at=1.0, key_sha256="ab", trajectory_uid="t", channel="val"))
    assert (session["key_sha256"], session["channel"]) == ("ab", "val")
    policy = records.parse(records.policy_record(at=1.0, version=4, event="sync_finished"))
    assert (policy["version"], policy["event"]) == (4, "sync_finished")


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"{}", b'{"kind": "other", "v": 1}', b'{"kind": "call", "v": 2}']
)
def test_what_is_no_record_is_refused(payload):
    with pytest.raises(InvalidInput):
        records.parse(payload)


# What engines say, abridged from their own documentation (research/capture.md).


def content(ids_or_tokens, logprob=-0.25):
    return {"content": [{"token": token, "logprob": logprob} for token in ids_or_tokens]}


def answer(choice, n_response=2, n_prompt=3, **top):
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n_response}
    return {"choices": [choice], "usage": usage, **top}


def test_vllm_chat():
    response = answer({"token_ids": [5, 6], "logprobs": content(["a", "b"])}, prompt_token_ids=[1, 2, 3])
    tokens = extract_tokens(response, 0, "chat")
    assert tokens == Tokens([1, 2, 3], [5, 6], [-0.25, -0.25], TokenSource.ENGINE, None)


def test_vllm_completions():
    choice = {
        "token_ids": [5, 6],
        "prompt_token_ids": [1, 2, 3],
        "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0]},
    }
    tokens = extract_tokens(answer(choice), 0, "completions")
    assert tokens == Tokens([1, 2, 3], [5, 6], [-1.0, -2.0], TokenSource.ENGINE, None)


def test_vllm_without_log_probs():
    tokens = extract_tokens(answer({"token_ids": [5, 6], "logprobs": None}), 0, "chat")
    assert tokens == Tokens(None, [5, 6], None, TokenSource.ENGINE, None)


def test_sglang_meta_info():
    choice = {
        "prompt_token_ids": [1, 2, 3],
        "meta_info": {"output_token_logprobs": [[-0.1, 5, "a"], [-0.2, 6, None]]},
    }
    tokens = extract_tokens(answer(choice), 0, "chat")
    assert tokens == Tokens([1, 2, 3], [5, 6], [-0.1, -0.2], TokenSource.ENGINE, None)


def test_ids_that_litellm_moved():
    choice = {"provider_specific_fields": {"token_ids": [5, 6]}, "logprobs": content(["a", "b"])}
    tokens = extract_tokens(answer(choice, prompt_token_ids=[1, 2, 3]), 0, "chat")
    assert tokens == Tokens([1, 2, 3], [5, 6], [-0.25, -0.25], TokenSource.ENGINE, None)


def test_log_prob_tokens_that_name_ids():
    tokens = extract_tokens(answer({"logprobs": content(["token_id:5", "token_id:6"])}), 0, "chat")
    assert tokens == Tokens(None, [5, 6], [-0.25, -0.25], TokenSource.LOGPROBS, None)


def test_log_prob_entries_with_ids():
    entries = {"content": [{"id": 5, "token": "a", "logprob": -0.5}, {"id": 6, "token": "b", "logprob": -0.5}]}
    tokens = extract_tokens(answer({"logprobs": entries}), 0, "chat")
    assert (tokens.response_ids, tokens.token_source) == ([5, 6], TokenSource.LOGPROBS)


def test_plain_log_probs_give_no_ids():
    tokens = extract_tokens(answer({"logprobs": content(["a", "token_id:x"])}), 0, "chat")
    assert tokens == Tokens(None, None, [-0.25, -0.25], TokenSource.BYTES, None)


@pytest.mark.parametrize("response", [{}, {"choices": []}, {"choices": None}, {"choices": [None]}, answer({})])
def test_nothing_told_is_none(response):
    tokens = extract_tokens(response, 0, "chat")
    assert tokens == Tokens(None, None, None, TokenSource.NONE, None)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (answer({"token_ids": [5, 6], "logprobs": content(["a"])}), "2 response ids, 1 log-probs"),
        (answer({"token_ids": [5, 6]}, n_response=3), "2 response ids, usage says 3"),
        (answer({"token_ids": [5, 6]}, prompt_token_ids=[1]), "1 prompt ids, usage says 3"),
        (answer({"token_ids": [5, "6"]}), "values that are not token ids"),
        (answer({"token_ids": [5, True]}), "values that are not token ids"),
        (answer({"token_ids": [5, -6]}), "values that are not token ids"),
        (answer({"token_ids": "56"}), "not a list"),
        (answer({"token_ids": [5, 6], "logprobs": content(["a", "b"], None)}), "log-prob at position 0 is None"),
        (answer({"logprobs": content(["a", "b"], math.inf)}), "log-prob at position 0 is inf"),
    ],
)
def test_what_disagrees_is_said_in_words(response, words):
    tokens = extract_tokens(response, 0, "chat")
    assert words in tokens.mismatch


def test_mismatched_lengths_are_neither_padded_nor_cut():
    response = answer({"token_ids": [5, 6, 7], "logprobs": content(["a", "b"])}, n_response=4)
    tokens = extract_tokens(response, 0, "chat")
    assert tokens.response_ids == [5, 6, 7]
    assert tokens.response_logprobs == [-0.25, -0.25]
    assert "3 response ids, 2 log-probs" in tokens.mismatch
    assert "3 response ids, usage says 4" in tokens.mismatch


def test_usage_of_several_choices_is_no_mismatch():
    response = answer({"token_ids": [5, 6]}, n_response=4)
    response["choices"].append({"token_ids": [7, 8]})
    assert extract_tokens(response, 1, "chat").response_ids == [7, 8]
    assert extract_tokens(response, 1, "chat").mismatch is None


@given(st.dictionaries(st.sampled_from(["choices", "usage", "prompt_token_ids"]), json_values), st.integers(-1, 2))
def test_any_json_is_survived(response, index):
    tokens = extract_tokens(response, index, "chat")
    assert tokens.token_source in set(TokenSource)


choice_values = st.dictionaries(
    st.sampled_from(["token_ids", "logprobs", "meta_info", "prompt_token_ids", "provider_specific_fields"]),
    json_values | st.fixed_dictionaries({"content": st.lists(json_values)}),
)


@given(choice_values, st.sampled_from(["chat", "completions", "messages"]))
def test_any_choice_is_survived(choice, dialect):
    tokens = extract_tokens({"choices": [choice]}, 0, dialect)
    if tokens.response_ids is not None:
        assert all(type(token) is int for token in tokens.response_ids)
