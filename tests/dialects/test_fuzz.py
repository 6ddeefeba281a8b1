"""Whatever a body or an answer holds: a translation, or a refusal that names a field. Nothing else."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from core.dialects import DIALECTS, BadRequest, ResponseIds, chat_answer, native_stream
from core.dialects.base import Translation
from tests.effort import settings

from .events import parse

KEY_WORDS = """
    messages role content type text input system tools name input_schema tool_choice source data url image image_url
    tool_use tool_result tool_use_id id thinking signature document title stop_sequences output_config format schema
    instructions call_id arguments output reasoning summary encrypted_content include parallel_tool_calls namespace
    custom function grammar definition max_tokens max_output_tokens metadata user_id effort is_error media_type
    item_reference top_logprobs mode choices message delta tool_calls index finish_reason usage prompt_tokens
    prompt_tokens_details cached_tokens completion_tokens refusal reasoning_content function_call logprobs stop_reason
"""
VALUE_WORDS = """
    user assistant system developer text image document tool_use tool_result thinking redacted_thinking base64 url
    content auto any none required tool function custom local_shell namespace allowed_tools message reasoning
    function_call function_call_output custom_tool_call local_shell_call item_reference input_text input_image
    output_text json_schema json_object stop length tool_calls tool_reference search_result input_file
"""
KEYS = st.sampled_from(KEY_WORDS.split())
WORDS = st.sampled_from(VALUE_WORDS.split())
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | WORDS | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
objects = st.dictionaries(KEYS, values, max_size=6)
blocks = st.lists(st.fixed_dictionaries({"type": WORDS}, optional={}).flatmap(
    lambda typed: objects.map(lambda rest: {**rest, **typed})), max_size=4)  # fmt: skip
turns = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, WORDS, st.one_of(WORDS, blocks)), max_size=3
)
bodies = st.builds(
    lambda rest, messages, items: {"model": "m", **rest, **messages, **items},
    objects,
    turns.map(lambda messages: {"messages": messages}) | st.just({}),
    st.one_of(blocks, turns).map(lambda items: {"input": items}) | st.just({}),
)
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}


def opened(dialect: str, body: dict[str, Any]) -> Translation | None:
    try:
        return DIALECTS[dialect].open(body, ResponseIds("s" * 32, 1.0, "w0.1.8"), ())
    except BadRequest as error:
        assert error.field
        return None


@settings(max_examples=400)
@given(st.sampled_from(sorted(DIALECTS)), bodies)
def test_bodies(dialect: str, body: dict[str, Any]) -> None:
    before = orjson.dumps(body)
    translation = opened(dialect, body)
    assert orjson.dumps(body) == before
    if translation is None:
        return
    request = orjson.loads(orjson.dumps(translation.engine_request))
    if dialect in ("messages", "responses"):
        assert all(isinstance(message["role"], str) for message in request["messages"])
        orjson.dumps(translation.full_answer(ANSWER))
        assert parse(translation.stream(ANSWER))


@settings(max_examples=300)
@given(st.sampled_from(["messages", "responses"]), objects, objects)
def test_answers(dialect: str, answer: dict[str, Any], message: dict[str, Any]) -> None:
    """Engines send odd things; the capture checks only that there are choices."""
    translation = opened(dialect, {"model": "m", "input": "x", "messages": []})
    assert translation is not None
    answer = {**answer, "choices": [{**message, "message": message, "delta": message}]}
    orjson.dumps(translation.full_answer(answer))
    assert parse(translation.stream(answer))
    relay = translation.relay()
    assert parse(relay.feed(answer) + relay.feed({"choices": message}) + relay.finish())


@given(st.sampled_from(["messages", "responses"]), objects, blocks)
def test_native_answers(dialect: str, rest: dict[str, Any], content: list[Any]) -> None:
    response = {**rest, "type": "message", "object": "response", "content": content, "output": content}
    chat_answer(dialect, response)
    assert parse(native_stream("messages", response))
