"""n > 1 with engines that refuse it, or give one choice and say nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from core.gateway.engines.choices import AT_A_TIME, n_choices
from core.tokens import extract_tokens
from tests.gateway.upstream import Upstream, chat_answer, completions_answer

HI = [{"role": "user", "content": "hi"}]


class OneAtATime:
    """An engine that makes another choice each time."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.n = 0

    def __call__(self, seen: Any) -> Any:
        if self.kind == "refuses" and seen.body.get("n", 1) > 1:
            return JSONResponse({"error": {"message": "Only one completion choice is allowed"}}, 400)
        if seen.body.get("temperature") == 9:
            return JSONResponse({"error": {"message": "temperature is too high"}}, 400)
        self.n += 1
        if seen.path == "completions":
            return completions_answer(f"text {self.n}", (self.n, 8))
        return chat_answer(f"text {self.n}", response_ids=(self.n, 8, 9))


@pytest.fixture(params=["refuses", "ignores"])
def gateway(request, make_gateway, upstream):
    engine = OneAtATime(request.param)
    # The upstream asks for functions.
    upstream.reply = lambda seen: engine(seen)
    return make_gateway(upstream, streaming="whole")


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_is_sampled_and_kept(gateway, upstream, stream):
    if stream:
        texts = {0: "", 1: "", 2: ""}
        for chunk in gateway.sdk().chat.completions.create(model="m", messages=HI, n=3, seed=5, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert sorted(texts.values()) == ["text 1", "text 2", "text 3"]
    else:
        answer = gateway.sdk().chat.completions.create(model="m", messages=HI, n=3, seed=5)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert sorted(choice.message.content for choice in answer.choices) == ["text 1", "text 2", "text 3"]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 9, 13)
    (record,) = gateway.records()
    for index, choice in enumerate(record["response"]["choices"]):
        tokens = extract_tokens(record["response"], index, "chat")
        assert tokens.mismatch is None
        assert tokens.prompt_ids == [1, 2, 3, 4]
        assert f"text {tokens.response_ids[0]}" == choice["message"]["content"]
    assert record["dropped_fields"] == ["n"]
    assert record["engine_facts"]["calls_for_choices"] == 3
    # Equal seeds would sample equal choices.
    answered = [seen.body["seed"] for seen in upstream.seen if "n" not in seen.body or len(upstream.seen) == 3]
    assert len(set(answered)) == 3


def test_it_is_found_out_once(gateway, upstream):
    gateway.chat(n=2)
    upstream.seen.clear()
    assert len(gateway.chat(n=2).json()["choices"]) == 2
    assert ["n" in seen.body for seen in upstream.seen] == [False, False]
    gateway.chat()
    assert len(upstream.seen) == 3


def test_completions(gateway):
    answer = gateway.sdk().completions.create(model="m", prompt="x", n=2)
    assert sorted(choice.text for choice in answer.choices) == ["text 1", "text 2"]
    tokens = [extract_tokens(gateway.records()[0]["response"], index, "completions") for index in (0, 1)]
    assert sorted(one.response_ids[0] for one in tokens) == [1, 2]


def test_another_refusal_stays_the_engines_own(make_gateway, upstream):
    upstream.reply = lambda seen: JSONResponse({"error": {"message": f"too high, n={seen.body.get('n')}"}}, 400)
    refused = make_gateway(upstream).chat(n=2)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "too high, n=2"


@given(st.none() | st.booleans() | st.integers(-1, 5), st.sampled_from(["x", [1, 2], ["x", "y"], [[1], [2]], None]))
def test_what_counts_as_several(n: Any, prompt: Any) -> None:
    several = type(n) is int and n > 1 and prompt not in (["x", "y"], [[1], [2]])
    assert n_choices({"n": n, "prompt": prompt}) == (n if several else 1)


@pytest.mark.parametrize("n", [129, 10**19])
def test_too_many_choices_are_not_asked_for_one_by_one(gateway, upstream, n):
    for _ in range(2):
        answer = gateway.chat(n=n)
        assert answer.status_code == 400
    # With all that the gateway adds, and with less.
    assert len(upstream.seen) <= 6
    assert gateway.chat(n=2).status_code == 200


def test_an_engine_is_not_asked_for_all_choices_at_once(make_gateway, upstream):
    asking, most = 0, 0

    class Counting(Upstream):
        async def _answer(self, request: Any) -> Any:
            nonlocal asking, most
            asking += 1
            most = max(most, asking)
            await asyncio.sleep(0.02)
            asking -= 1
            return JSONResponse(chat_answer())

    engine = Counting().start()
    gateway = make_gateway(engine)
    assert len(gateway.chat(n=40).json()["choices"]) == 40
    assert 1 < most <= AT_A_TIME
    engine.stop()
