"""Chat answers, the chunks that a streaming engine would cut them into, and conversations."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
some_text = texts.filter(bool)
names = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
arguments = st.one_of(
    json_objects.map(lambda value: json.dumps(value, ensure_ascii=False)),
    json_objects.map(lambda value: json.dumps(value, separators=(",", ":"))),
    st.sampled_from(["", "{", "null", "[1]", '{"a": 1} trailing', "words"]),
)


@st.composite
def tool_calls(draw: st.DrawFn, given: Any = arguments, max_size: int = 3) -> list[dict[str, Any]]:
    n = draw(st.integers(0, max_size))
    ids = draw(st.lists(st.from_regex(r"call_[a-z0-9]{6}", fullmatch=True), min_size=n, max_size=n, unique=True))
    return [
        {"id": call_id, "type": "function", "function": {"name": draw(names), "arguments": draw(given)}}
        for call_id in ids
    ]


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """A whole chat answer of one choice."""
    calls = draw(tool_calls())
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | texts)}
    reasoning = draw(st.none() | some_text)
    if reasoning is not None:
        message[draw(st.sampled_from(["reasoning", "reasoning_content"]))] = reasoning
    if calls:
        message["tool_calls"] = calls
    refusal = draw(st.none() | some_text) if not calls and not message["content"] else None
    if refusal:
        message["refusal"] = refusal
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter"]))
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    if finish == "stop":
        choice["stop_reason"] = draw(st.none() | some_text | st.integers(0, 99))
    n_prompt, n_new = draw(st.integers(1, 999)), draw(st.integers(0, 99))
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}
    if draw(st.booleans()):
        usage["prompt_tokens_details"] = {"cached_tokens": draw(st.integers(0, n_prompt))}  # type: ignore[assignment]
    return {"id": "chatcmpl-1", "model": "policy", "created": 1, "choices": [choice], "usage": usage}


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
    return [text[start:end] for start, end in pairwise(cuts)]


@st.composite
def streamed(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole answer, and chunks that an engine may have streamed it in."""
    answer = draw(answers())
    (choice,) = answer["choices"]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "reasoning_content", "content", "refusal"):
        if message.get(name):
            deltas += [{name: piece} for piece in draw(pieces(message[name]))]
    for index, call in enumerate(message.get("tool_calls", ())):
        first = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in draw(pieces(call["function"]["arguments"]))
        ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    ended = {name: choice[name] for name in ("finish_reason", "stop_reason") if name in choice}
    if draw(st.booleans()):
        chunks[-1]["choices"][0] |= ended
    else:
        chunks.append({"choices": [{"index": 0, "delta": {}, **ended}]})
    if draw(st.booleans()):
        chunks.append({"choices": [], "usage": answer["usage"]})
    else:
        chunks[-1]["usage"] = answer["usage"]
    return answer, [{"id": "chatcmpl-1", "model": "policy", **chunk} for chunk in chunks]


images = st.sampled_from(["data:image/png;base64,iVBORw0KGgo=", "https://example.org/a.png"]).map(
    lambda url: {"type": "image_url", "image_url": {"url": url}}
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Canonical chat messages: what every dialect can say."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(some_text)})
    for turn in range(draw(st.integers(1, 3))):
        content: Any = draw(some_text)
        if draw(st.booleans()):
            content = [{"type": "text", "text": content}, draw(images)]
        messages.append({"role": "user", "content": content})
        if draw(st.booleans()) and turn:
            continue
        calls = draw(tool_calls(json_objects.map(lambda value: json.dumps(value, ensure_ascii=False))))
        said = draw(some_text) if not calls or draw(st.booleans()) else None
        answer: dict[str, Any] = {"role": "assistant", "content": said}
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(some_text)
        if calls:
            answer["tool_calls"] = calls
        messages.append(answer)
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(texts)} for call in calls]
    return messages
