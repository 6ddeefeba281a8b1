"""An engine that repeats its key, and engines that want a login: the key reaches nobody."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.gateway.calls.own_keys import StreamGuard, usable_secrets, without_own_keys
from core.scrub import pop_secrets, scrub_metadata, split_login
from tests.effort import settings

KEY = "sk-own-4f0e8a1b2c3d-4f0e"
OTHER = "sk-own-4f0e-another-key"


def chunk(text: str | None, **more: Any) -> dict[str, Any]:
    delta = {"content": text} if text is not None else {}
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "token_ids": [1, 2], **more}]}


def joined_text(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for one in chunks for choice in one["choices"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([KEY, OTHER, "sk-own-", KEY[:9], "s", "words ", "é"]), max_size=8),
    st.lists(st.integers(1, 7), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_no_cut_of_a_stream_lets_a_key_through(pieces: list[str], cuts: list[int], at_once: int) -> None:
    """The reference is the whole text with the keys replaced."""
    text = "".join(pieces)
    parts, at = [], 0
    while at < len(text):
        n = cuts[len(parts) % len(cuts)]
        parts.append(text[at : at + n])
        at += n
    guard = StreamGuard(usable_secrets([KEY, OTHER]))
    came = [chunk(part) for part in parts]
    going: list[dict[str, Any]] = []
    for first in range(0, len(came), at_once):
        going += guard.feed(came[first : first + at_once])
        for key in (KEY, OTHER):
            assert key not in joined_text(going)
    going += guard.rest()
    expected = text
    for key in usable_secrets([KEY, OTHER]):
        expected = expected.replace(key, "[secret]")
    assert joined_text(going) == expected
    assert guard.cut == (expected != text)
    if not guard.cut:
        assert going == [chunk(part) for part in parts], "what holds no key goes on as it came"


def test_two_choices_and_arguments_are_followed_apart() -> None:
    guard = StreamGuard(usable_secrets([KEY]))

    def call(arguments: str, index: int) -> dict[str, Any]:
        calls = [{"index": 0, "function": {"arguments": arguments}}]
        return {
            "choices": [{"index": index, "delta": {"tool_calls": calls}, "logprobs": {"content": [{"token": "x"}]}}]
        }

    going = guard.feed([call(KEY[:10], 0), call("no", 1), call(KEY[10:], 0)]) + guard.rest()
    body = json.dumps(going)
    assert "[secret]" in body
    assert KEY[10:] not in body
    assert "logprobs" not in body, "the tokens spell the key"


@pytest.mark.parametrize("spell", [lambda s: s, lambda s: "".join(f"\\u{ord(c):04x}" for c in s)])
def test_a_whole_answer(spell: Any) -> None:
    raw = ('{"choices":[{"message":{"content":"it is ' + spell(KEY) + '"},"token_ids":[1],"logprobs":{}}]}').encode()
    clean = without_own_keys(raw, usable_secrets([KEY]))
    assert clean is not None
    assert clean[1] == {"choices": [{"message": {"content": "it is [secret]"}}]}
    assert json.loads(clean[0]) == clean[1]
    assert without_own_keys(b'{"choices":[{"token_ids":[1]}]}', usable_secrets([KEY])) is None


def test_keys_in_what_clients_send_beside_the_conversation() -> None:
    planted = {
        "metadata": {"api_key": KEY, "deep": [{"x-api-key": KEY}], "task": "7", "max_tokens": 5},
        "litellm_params": {"openai_api_key": KEY},
        "extra_body": {"a": {"Authorization": f"Bearer {KEY}"}},
        "extra_query": {"api-key": KEY},
        "default_headers": {"x-mine": KEY},
        "messages": [{"role": "user", "content": "the api_key: field"}],
    }
    names, texts = pop_secrets(planted)
    assert KEY in texts
    assert KEY not in json.dumps(planted)
    assert planted["metadata"] == {"deep": [{}], "task": "7", "max_tokens": 5}
    assert {"default_headers", "metadata.api_key", "litellm_params.openai_api_key"} <= set(names)
    assert scrub_metadata({"note": f"with {KEY}", "client_secret": KEY, "n": 1}) == {"note": "with [secret]", "n": 1}


@pytest.mark.parametrize(
    ("url", "bare", "login"),
    [
        ("http://u:p%40w@h:1/v1", "http://h:1/v1", "u:p%40w"),
        ("http://a@b@h/v1", "http://h/v1", "a@b"),
        ("http://h/v1/@x", "http://h/v1/@x", None),
        ("local", "local", None),
        ("litellm:openai/x@y", "litellm:openai/x@y", None),
    ],
)
def test_a_login_is_split_from_its_address(url: str, bare: str, login: str | None) -> None:
    assert split_login(url) == (bare, login)


def test_basic_is_what_the_standard_says() -> None:
    from core.gateway.engines.base import basic

    assert (
        basic("Aladdin:open%20sesame")
        == "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        == base64.b64encode(b"Aladdin:open sesame").decode()
    )
