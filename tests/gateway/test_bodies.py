"""Engines' bodies are parsed no more than needed, and never taken for what they are not."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import EngineError
from core.gateway.bodies import parse_answer, parse_body

ASKED = ["return_token_ids", "logprobs"]
NUMBERS = st.text(alphabet="0123456789, ", max_size=12)


def without(answer):
    """Lists of prompt ids as ``parse_answer`` leaves them."""
    if isinstance(answer, dict):
        return {k: [0] if k == "prompt_token_ids" and v else without(v) for k, v in answer.items()}
    return [without(one) for one in answer] if isinstance(answer, list) else answer


@given(
    st.lists(st.integers(0, 2**31), max_size=6),
    st.sampled_from([(", ", ": "), (",", ":")]),
    st.text(alphabet='"\\\\[]0,:prompt_token_ids', max_size=40),
)
def test_only_prompt_ids_are_left_out_and_what_is_recorded_has_them(ids, separators, said):
    body = {
        "prompt_token_ids": ids,
        said: [1],
        "choices": [{"message": {"content": said + '"prompt_token_ids": [1, 2]'}, "prompt_token_ids": ids}],
        "usage": {"prompt_tokens": len(ids)},
    }
    raw = json.dumps(body, separators=separators).encode()
    answer, kept = parse_answer(raw, ASKED)
    assert kept == raw
    assert without(answer) == without(body)
    assert parse_answer(raw, ["logprobs"]) == parse_body(raw) == (body, raw)


@given(NUMBERS)
@example("1,,2")
@example("01")
@example("0, 0,0")
@example("1 2")
@example(",1")
def test_a_list_that_is_none_is_found_out(text):
    raw = b'{"prompt_token_ids": [' + text.encode() + b'], "choices": []}'
    try:
        json.loads(raw)
    except ValueError:
        with pytest.raises(EngineError):
            parse_answer(raw, ASKED)
    else:
        answer, kept = parse_answer(raw, ASKED)
        assert kept == raw and answer["choices"] == []
        assert bool(answer["prompt_token_ids"]) == bool(orjson.loads(raw)["prompt_token_ids"])


def test_a_body_that_is_cut_in_the_list_is_no_answer():
    with pytest.raises(EngineError):
        parse_answer(b'{"prompt_token_ids": [1, 2', ASKED)
