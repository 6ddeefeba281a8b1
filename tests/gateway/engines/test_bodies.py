"""An engine's body without its prompt's ids is the body, and never taken for JSON when it is none."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineError
from core.gateway.engines.response_bodies import parse_body
from tests.effort import settings

ODD = '"prompt_token_ids":[1,2] \\ "prompt_token_ids": [' + "1," * 6000
lists = st.one_of(
    st.lists(st.integers(0, 200_000), max_size=3),
    st.builds(
        lambda ids, n: ids * n, st.lists(st.integers(0, 200_000), min_size=1, max_size=9), st.integers(1500, 2500)
    ),
    st.just([[1, 2], 3] * 2000),
    st.just(["1"] * 4000),
    st.just([1.5, -1, None, True] * 2000),
)


def shortened(value: Any) -> Any:
    """The same with one id in each list of prompt ids."""
    if isinstance(value, dict):
        return {
            name: item[:1] if name == "prompt_token_ids" and isinstance(item, list) else shortened(item)
            for name, item in value.items()
        }
    return [shortened(item) for item in value] if isinstance(value, list) else value


@given(lists, lists, st.sampled_from([ODD, "words"]), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]))
@settings(deadline=None)
def test_all_but_the_prompts_ids_is_there(outer: Any, inner: Any, text: str, separators: tuple[str, str]) -> None:
    choice = {"message": {"content": text}, "prompt_token_ids": inner, "token_ids": [1] * 900}
    raw = json.dumps({"prompt_token_ids": outer, "choices": [choice], "z": text}, separators=separators).encode()
    whole, body = parse_body(raw)
    short, same = parse_body(raw, prompt_ids=False)
    assert body == same == raw
    assert shortened(short) == shortened(whole)


@given(
    st.sampled_from([b",", b", "]),
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0])),
    st.sampled_from([b",", b" ", b"0", b"]", b"[", b'"', b"x", b"-", b".", b", ", b" ,", b""]),
    st.integers(0, 2),
)
@settings(deadline=None, max_examples=300)
def test_what_is_no_json_is_never_taken_for_it(separator: bytes, place: float, put: bytes, gone: int) -> None:
    good = b'{"prompt_token_ids":[%b],"a":1}' % separator.join(b"%d" % (one * 37 % 1001) for one in range(3000))
    at = 21 + int(place * (len(good) - 30))
    torn = good[:at] + put + good[at + gone :]
    try:
        orjson.loads(torn)
    except orjson.JSONDecodeError:
        # Nobody repairs it silently either: the strict form is JSON, or there is an error.
        try:
            _, body = parse_body(torn, prompt_ids=False)
        except EngineError:
            return
        assert body != torn
        orjson.loads(body)
    else:
        assert parse_body(torn, prompt_ids=False)[1] == torn


@pytest.mark.parametrize("separator", [b",", b", "])
def test_long_lists_are_left_out(separator: bytes) -> None:
    raw = b'{"prompt_token_ids": [%b], "n": 7}' % separator.join(b"%d" % n for n in range(1000, 5000))
    assert parse_body(raw, prompt_ids=False) == ({"prompt_token_ids": [1000], "n": 7}, raw)


def test_numbers_that_json_has_not_become_null_in_them_too() -> None:
    raw = b'{"prompt_token_ids": [1, NaN, %b], "n": 7}' % b", ".join([b"5"] * 5000)
    parsed, body = parse_body(raw, prompt_ids=False)
    assert orjson.loads(body)["prompt_token_ids"][:3] == [1, None, 5]
    assert parsed["n"] == 7
