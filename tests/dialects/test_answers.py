from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from core.dialects import MESSAGES, RESPONSES, ResponseIds
from core.errors import EngineError
from core.linking.calls import normal_message
from tests.effort import settings

from .events import message_of, parse, response_of, whole_message
from .strategies import answers, streamed

NAMES = ResponseIds("s" * 32, 1_700_000_000.0, "w0.1.8")
MESSAGES_BODY = {"model": "asked", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES_BODIES: list[dict[str, Any]] = [
    {"model": "asked", "input": "hi"},
    {"model": "asked", "input": "hi", "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
]


@given(streamed())
def test_messages_streams_add_up_to_the_whole_message(case: Any) -> None:
    answer, chunks = case
    translation = MESSAGES.open(MESSAGES_BODY, NAMES, ())
    whole = whole_message(translation.full_answer(answer))
    assert message_of(translation.stream(answer)) == whole
    relay = translation.relay()
    relayed = b"".join([*(relay.feed(chunk) for chunk in chunks), relay.finish()])
    assert message_of(relayed) == whole


@given(streamed(), st.sampled_from(RESPONSES_BODIES))
def test_responses_streams_add_up_to_the_whole_response(case: Any, body: dict[str, Any]) -> None:
    answer, chunks = case
    translation = RESPONSES.open(body, NAMES, ())
    whole = Response.model_validate(translation.full_answer(answer)).model_dump()
    assert response_of(translation.stream(answer)) == whole
    relay = translation.relay()
    relayed = b"".join([*(relay.feed(chunk) for chunk in chunks), relay.finish()])
    assert response_of(relayed) == whole


@given(answers())
def test_an_answer_sent_back_is_the_message_that_the_engine_gave(answer: Any) -> None:
    """An agent repeats what it got: linking must recognise it."""
    message = answer["choices"][0]["message"]
    expected = {**message, "content": (message["content"] or "") + message.get("refusal", "")}
    for call in message.get("tool_calls", ()):
        # No arguments at all is the empty object.
        call["function"]["arguments"] = call["function"]["arguments"].strip() or "{}"
    got = MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(answer)
    history = [*MESSAGES_BODY["messages"], {"role": "assistant", "content": got["content"]}]
    back = MESSAGES.open({**MESSAGES_BODY, "messages": history}, NAMES, ()).engine_request["messages"][1]
    # Arguments that are JSON are compared as JSON, texts without the blanks around them.
    assert normal_message(back) == normal_message(expected)
    thinking = message.get("reasoning") or message.get("reasoning_content")
    assert back.get("reasoning_content") == thinking
    for body in RESPONSES_BODIES:
        output = RESPONSES.open(body, NAMES, ()).full_answer(answer)["output"]
        translation = RESPONSES.open(
            {**body, "input": [{"role": "user", "content": "hi"}, *output]}, NAMES, ()
        ).engine_request
        if not output:
            assert len(translation["messages"]) == 1
            continue
        assert len(translation["messages"]) == 2
        assert normal_message(translation["messages"][1]) == normal_message(expected)
        assert translation["messages"][1].get("reasoning_content") == thinking


def chat(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    full = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": "stop", **choice}
    return {"id": "x", "model": "m", "choices": [full]}


@pytest.mark.parametrize(
    ("choice", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "matched_stop": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "stop_reason": 7}, "end_turn", None),
        ({"finish_reason": "tool_calls"}, "tool_use", None),
        ({"finish_reason": "content_filter"}, "refusal", None),
        ({"finish_reason": None}, "end_turn", None),
    ],
)
def test_reasons_to_stop(choice: dict[str, Any], reason: str, sequence: str | None) -> None:
    got = MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(chat({"content": "x"}, **choice))
    assert (got["stop_reason"], got["stop_sequence"]) == (reason, sequence)


def test_tools_called_with_finish_reason_stop_are_tool_use() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(chat({"tool_calls": calls}))["stop_reason"] == "tool_use"


def test_calls_without_ids_get_one_of_their_own() -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    answer = chat({"tool_calls": calls})
    ids = [block["id"] for block in MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(answer)["content"]]
    assert len(set(ids)) == 2
    output = RESPONSES.open(RESPONSES_BODIES[0], NAMES, ()).full_answer(answer)["output"]
    assert len({item["call_id"] for item in output}) == 2


def test_a_legacy_function_call_is_a_tool_call() -> None:
    answer = chat({"function_call": {"name": "f", "arguments": '{"a": 1}'}}, finish_reason="function_call")
    (block,) = MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(answer)["content"]
    assert (block["name"], block["input"]) == ("f", {"a": 1})


def test_what_cached_tokens_are_taken_from() -> None:
    answer = chat({"content": "x"})
    answer["usage"] = {
        "prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    usage = MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(answer)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (2, 8, 4)
    usage = RESPONSES.open(RESPONSES_BODIES[0], NAMES, ()).full_answer(answer)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 8
    assert usage["output_tokens_details"]["reasoning_tokens"] == 3
    assert usage["total_tokens"] == 14


def test_log_probs_of_the_text_for_who_includes_them() -> None:
    entries = [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]
    answer = chat({"content": "x"}, logprobs={"content": entries})
    body = {**RESPONSES_BODIES[0], "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    translation = RESPONSES.open(body, NAMES, ())
    assert (translation.engine_request["logprobs"], translation.engine_request["top_logprobs"]) == (True, 2)
    assert translation.full_answer(answer)["output"][0]["content"][0]["logprobs"] == entries
    assert response_of(translation.stream(answer))["output"][0]["content"][0]["logprobs"][0]["logprob"] == -0.5
    plain = RESPONSES.open(RESPONSES_BODIES[0], NAMES, ())
    assert plain.full_answer(answer)["output"][0]["content"][0]["logprobs"] == []


@settings(max_examples=30)
@given(streamed(), st.integers(0, 5))
def test_a_stream_that_breaks_ends_with_an_error_of_its_dialect(case: Any, n_sent: int) -> None:
    _, chunks = case
    error = EngineError("it broke", upstream_status=500)
    relay = MESSAGES.open(MESSAGES_BODY, NAMES, ()).relay()
    events = parse(b"".join([*(relay.feed(chunk) for chunk in chunks[:n_sent]), relay.fail(error)]))
    assert events[-1][0] == "error"
    assert events[-1][1]["error"] == {"type": "api_error", "message": "it broke"}
    relay = RESPONSES.open(RESPONSES_BODIES[0], NAMES, ()).relay()
    events = parse(b"".join([*(relay.feed(chunk) for chunk in chunks[:n_sent]), relay.fail(error)]))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert events[0][0] == "response.created"
    assert events[-1][0] == "response.failed"
    failed = Response.model_validate(events[-1][1]["response"])
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("server_error", "it broke")


def test_a_full_context_is_told_in_the_words_that_make_agents_compact() -> None:
    error = EngineError("This model's maximum context length is 8 tokens. However, you ...", upstream_status=400)
    assert MESSAGES.error(error)["error"]["message"].startswith("prompt is too long: This model's")
    relay = RESPONSES.open(RESPONSES_BODIES[0], NAMES, ()).relay()
    failed = parse(relay.fail(error))[-1][1]["response"]
    assert failed["error"]["code"] == "context_length_exceeded"


def test_everything_is_json_that_strict_clients_read() -> None:
    answer = chat({"content": "\u2028 \x7f \U0001f600"})
    stream = MESSAGES.open(MESSAGES_BODY, NAMES, ()).stream(answer)
    assert "\u2028 \x7f \U0001f600" in message_of(stream)["content"][0]["text"]
    assert orjson.loads(orjson.dumps(MESSAGES.open(MESSAGES_BODY, NAMES, ()).full_answer(answer)))
