"""What our engines stream, put together as the gateway does it, is exactly what they answer in one piece."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.dialects.assembly import Assembly
from core.gateway.transport.sse import EventReader
from tests.effort import settings

from .serving_client import TOOLS, Client
from .serving_strategies import CALLS, TEXT

ASKED = {"return_token_ids": True, "logprobs": True, "top_logprobs": 2}
HELLO = [{"role": "user", "content": "hello"}]


def streamed(client: Client, path: str, body: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """The stream's bytes cut at random places, put together."""
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    response = client.http.post(f"/v1/{path}", json=request).raise_for_status()
    assert response.headers["content-type"].startswith("text/event-stream")
    raw, reader, assembly, rng = response.content, EventReader(), Assembly(), random.Random(seed)
    events: list[bytes] = []
    while raw:
        size = rng.randint(1, 40)
        events += reader.feed(raw[:size])
        raw = raw[size:]
    assert events.pop() == b"[DONE]"
    for event in events:
        assembly.feed(orjson.loads(event))
    assert assembly.ended
    return assembly.full_answer()


def bare(answer: dict[str, Any]) -> dict[str, Any]:
    """Without the names that differ from call to call."""
    fields = {name: value for name, value in answer.items() if name not in ("id", "created")}
    for choice in fields["choices"]:
        for number, call in enumerate(choice.get("message", {}).get("tool_calls", ())):
            call["id"] = str(number)
    return fields


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(TEXT, CALLS, st.text(max_size=9)), min_size=1, max_size=2),
    st.integers(1, 4),
    st.none() | st.integers(1, 12),
)
def test_the_scripted_engine(scripted: Client, told: Any, chunk_tokens: int, max_tokens: int | None) -> None:
    replies = [{"content": text, "tool_calls": calls, "reasoning": thought} for text, calls, thought in told]
    script = {"reasoning_parser": True, "rules": [{"variants": replies, "chunk_tokens": chunk_tokens}]}
    scripted.script(script)
    body = {"model": "m", "messages": HELLO, "tools": TOOLS, "n": len(replies), "max_tokens": max_tokens, **ASKED}
    whole = scripted.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    # Variants take turns from call to call.
    scripted.script(script)
    assert bare(streamed(scripted, "chat/completions", body)) == bare(whole)
    assert whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("n", [1, 3])
def test_the_scripted_engines_completions(scripted: Client, n: int) -> None:
    scripted.script({"default": {"content": "Zoë 🙂 漢字 and some more words"}})
    body = {"model": "m", "prompt": ["one", "two two"], "n": n, "max_tokens": 30, **ASKED, "logprobs": 2}
    del body["top_logprobs"]
    whole = scripted.http.post("/v1/completions", json=body).raise_for_status().json()
    assert len(whole["choices"]) == 2 * n
    assert bare(streamed(scripted, "completions", body)) == bare(whole)


@pytest.mark.parametrize("n", [1, 2])
def test_the_local_engine(local: Client, n: int) -> None:
    body = {"model": "m", "messages": HELLO, "n": n, "seed": 7, "temperature": 0.9, "max_tokens": 24, **ASKED}
    whole = local.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    got = streamed(local, "chat/completions", body, seed=n)
    # Batches differ between two runs, and the last bits of log-probs with them; ids and their number do not.
    for answer in (whole, got):
        for choice in answer["choices"]:
            for entry in choice["logprobs"]["content"]:
                for one in (entry, *entry["top_logprobs"]):
                    one["logprob"] = round(one["logprob"], 3)
                entry["top_logprobs"].sort(key=lambda one: one["token"])
    assert bare(got) == bare(whole)
    assert all(len(choice["token_ids"]) == len(choice["logprobs"]["content"]) for choice in got["choices"])
