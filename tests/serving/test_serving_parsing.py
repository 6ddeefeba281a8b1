from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from core.serving.parsing import MessageParser, StopScanner, assistant_text, parse_call
from tests.effort import settings
from tests.serving.serving_strategies import CALLS, TEXT


def parse(text: str, cuts: list[int], *, tools: bool = True, reasoning: bool = True) -> tuple[dict, dict]:
    """The parser's message, and the message a client puts together from its deltas."""
    parser = MessageParser(tools=tools, reasoning=reasoning, call_id=lambda n: f"call_{n}")
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    deltas = [d for a, b in pairwise(edges) for d in parser.feed(text[a:b])] + parser.close()
    whole: dict = {"content": "", "reasoning": "", "tool_calls": []}
    for delta in deltas:
        whole["content"] += delta.get("content", "")
        whole["reasoning"] += delta.get("reasoning", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                whole["tool_calls"].append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                whole["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return parser.message, whole


CUTS = st.lists(st.integers(0, 400), max_size=8)
PLAIN = TEXT.filter(lambda t: "<tool_call>" not in t and not t.startswith("<think>"))


@settings(max_examples=300, deadline=None)
@given(PLAIN, TEXT.filter(lambda t: "</think>" not in t), CALLS, CUTS)
def test_parser_is_the_inverse_of_the_template(content, reasoning, calls, cuts):
    text = assistant_text({"content": content, "reasoning": reasoning, "tool_calls": calls})
    message, streamed = parse(text, cuts)
    assert (message["content"] or "") == streamed["content"] == content
    assert message.get("reasoning", "") == streamed["reasoning"] == reasoning
    tool_calls = message.get("tool_calls", [])
    assert tool_calls == streamed["tool_calls"]
    assert [
        {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])} for c in tool_calls
    ] == calls


@settings(max_examples=300, deadline=None)
@given(TEXT, CUTS)
def test_no_text_is_lost_and_a_stream_is_the_whole(text, cuts):
    message, streamed = parse(text, cuts)
    assert (message["content"] or "") == streamed["content"]
    assert parse(text, [])[0] == message
    if "<think>" not in text and "tool_call>" not in text:
        assert message["content"] == text


@settings(max_examples=300, deadline=None)
@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), CUTS)
def test_stop_scanner_cuts_like_a_plain_search(text, stops, cuts):
    scanner = StopScanner(stops)
    out, met = "", None
    for character in text:
        piece, met = scanner.feed(character)
        out += piece
        if met is not None:
            break
    else:
        out += scanner.close()
    ends = [text.find(s) + len(s) for s in stops if s in text]
    if not ends:
        assert met is None and out == text
    else:
        upto = text[: min(ends)]
        assert met in stops and upto == out + met


def test_malformed_calls_stay_content():
    for inside in (
        '{"name": "f", "arguments": }',
        '{"name": "f"}',
        '{"name": 3, "arguments": {}}',
        "x",
        "[]",
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
    ):
        assert parse_call(inside) is None
        text = f"Let me see.\n<tool_call>\n{inside}\n</tool_call>"
        assert parse(text, [5, 20])[0] == {"role": "assistant", "content": text}
    open_call = 'a\n<tool_call>\n{"name": "f"'
    assert parse(open_call, [])[0]["content"] == open_call


def test_lenient_spelling_keeps_the_sampled_arguments():
    assert parse_call('{"name":"f","arguments":{"a":1,  "b":[ ]}}') == ("f", '{"a":1,  "b":[ ]}')
    assert parse_call('{"arguments": {"a":1}, "name": "f"}') == ("f", '{"a": 1}')


def test_without_tools_a_call_is_text():
    text = assistant_text({"content": "x", "tool_calls": [{"name": "f", "arguments": {}}]})
    assert parse(text, [], tools=False)[0] == {"role": "assistant", "content": text}
