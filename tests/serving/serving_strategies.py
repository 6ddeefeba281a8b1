"""Texts and tool calls that look for trouble at token borders."""

from __future__ import annotations

from hypothesis import strategies as st

MARKS = st.sampled_from(
    ["\n", "\n\n", " ", "\r\n", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>", "<think>", "é", "漢", "🙂"]
)
TEXT = st.lists(st.one_of(st.text(max_size=12), MARKS), max_size=6).map("".join)
NAME = st.text("abcdefgh_", min_size=1, max_size=8)
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.lists(
    st.fixed_dictionaries({"name": NAME, "arguments": st.dictionaries(NAME, JSON_VALUES, max_size=3)}), max_size=3
)
