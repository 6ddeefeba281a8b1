"""A record read by what its predecessors said is the record that a plain parse gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.ingest.reader import RecordReader
from core.pool.store.content import Message, Tools
from core.records import parse
from tests.effort import settings

ODD = '"messages":[ \\"prompt_token_ids\\":[1,2] }{][ \n "request":{ é 😀 \\ " -4611686018427387905'
texts = st.one_of(st.text(max_size=40), st.sampled_from([ODD, ODD * 3, "a" * 300]))
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts},
    optional={
        "tool_calls": st.lists(st.fixed_dictionaries({"id": texts, "function": st.just({"messages": [1]})}), max_size=2)
    },
)


def plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, np.ndarray):
        assert value.dtype == np.int32
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


FEW_TOOLS: list[Any] = [{"messages": [{"a": 1}]}]
MANY_TOOLS: list[Any] = [{"type": "function", "function": {"name": f"f{i}", "description": ODD * 2}} for i in range(3)]


def spaced(body: Any) -> bytes:
    """As Python's own ``json`` and many clients send it."""
    return json.dumps(body).encode()


def indented(body: Any) -> bytes:
    return json.dumps(body, indent=1, ensure_ascii=False).encode()


def payload(
    uid: str | None,
    said: list[Any],
    ids: Any,
    *,
    nested: bool = False,
    more: dict[str, Any] | None = None,
    tools: Any = FEW_TOOLS,
    tools_first: bool = False,
    written: Callable[[Any], bytes] = orjson.dumps,
) -> bytes:
    """A record as the gateway writes it around the bodies that came."""
    offered = {"tools": tools}
    choice = {"index": 0, "prompt_token_ids": ids} if nested else {"index": 0}
    response = {"choices": [choice], "tools": tools} if nested else {"prompt_token_ids": ids, "choices": [choice]}
    record = {
        "kind": "call",
        "v": 1,
        "at": 1.0,
        "identity": {"trajectory_uid": uid},
        "request": orjson.Fragment(
            written(
                {
                    **(more or {}),
                    **(offered if tools_first else {}),
                    "model": "m",
                    "messages": said,
                    **({} if tools_first else offered),
                }
            )
        ),
        "engine_added": ["logprobs"],
        "response": orjson.Fragment(written(response)),
    }
    return orjson.dumps(record)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Calls of a few agents: mostly an agent's own words again with more behind them, sometimes something else."""
    past: list[tuple[list[Any], list[int]]] = [([], [])]
    made = []
    for _ in range(draw(st.integers(1, 12))):
        prompt, ids = draw(st.sampled_from(past))
        prompt = prompt[: draw(st.integers(0, len(prompt)))] if draw(st.booleans()) else prompt
        prompt = prompt + draw(st.lists(messages, max_size=3))
        ids = ids[: draw(st.integers(0, len(ids)))] if draw(st.booleans()) else ids
        ids = ids + draw(st.lists(st.integers(0, 200_000), max_size=5)) + draw(st.sampled_from([[], [7] * 200]))
        past.append((prompt, ids))
        uid = draw(st.sampled_from(["a", "b", None, 'q"uote']))
        decoys = [{"messages": [{"role": "x"}], "response": {}}, {"tools": MANY_TOOLS}, {"tools": MANY_TOOLS[::-1]}]
        decoys.append({"engine_added": ["tools"], "tools": MANY_TOOLS})
        more = draw(st.sampled_from([None, *({"metadata": decoy} for decoy in decoys)]))
        tools = draw(
            st.sampled_from([FEW_TOOLS, MANY_TOOLS, MANY_TOOLS[:2], ["text", *MANY_TOOLS], None, {"a": "x" * 300}])
        )
        nested, first = draw(st.booleans()), draw(st.booleans())
        written = draw(st.sampled_from([orjson.dumps, orjson.dumps, spaced, indented]))
        made.append(
            payload(uid, prompt, ids, nested=nested, more=more, tools=tools, tools_first=first, written=written)
        )
    return made


@given(conversations(), st.sampled_from([1, 5_000, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_any_conversation_reads_as_it_is_written(made: list[bytes], max_bytes: int) -> None:
    reader = RecordReader(max_bytes=max_bytes)
    for one in made:
        assert plain(reader.parse(one)) == parse(one)


WRONG_IDS: list[Any] = [
    [1.5] * 100,
    [-1] * 100,
    ["1"] * 100,
    [True] * 100,
    [2**31] * 100,
    [[1, 2]] * 100,
    None,
    {"a": [1] * 200},
    [1] * 150 + [None],
]


@pytest.mark.parametrize("ids", WRONG_IDS, ids=repr)
def test_what_is_no_list_of_ids_stays_what_it_is(ids: Any) -> None:
    reader = RecordReader()
    good = payload("a", [{"role": "user", "content": "x"}], list(range(300)))
    for one in (good, payload("a", [{"role": "user", "content": "x"}], ids), good):
        assert plain(reader.parse(one)) == parse(one)


@pytest.mark.parametrize("said", [["text"], [1, 2], [None], [{"role": "user"}, "text"], [["a"]], "none", {"a": 1}])
def test_messages_that_are_no_objects_stay_what_they_are(said: Any) -> None:
    reader = RecordReader()
    good = payload("a", [{"role": "user", "content": "x"}], [1])
    for one in (good, payload("a", said, [1]), good):
        assert plain(reader.parse(one)) == parse(one)


@pytest.mark.parametrize("written", [orjson.dumps, spaced, indented])
def test_what_is_repeated_is_the_same_object(written: Callable[[Any], bytes]) -> None:
    reader = RecordReader()
    first = [{"role": "system", "content": "be good"}, {"role": "user", "content": "go"}]
    ids = list(range(300))
    before = reader.parse(payload("a", first, ids, written=written))["request"]["messages"]
    longer = payload("a", [*first, {"role": "assistant", "content": "ok"}], [*ids, 7, 8], written=written)
    again = reader.parse(longer)
    after = again["request"]["messages"]
    assert all(isinstance(one, Message) for one in after)
    assert before[0] is after[0] and before[1] is after[1]
    assert isinstance(again["response"]["prompt_token_ids"], np.ndarray)
    offered = [
        reader.parse(payload("a", first, ids, tools=tools, written=written))["request"]["tools"]
        for tools in (MANY_TOOLS, MANY_TOOLS, MANY_TOOLS[:2])
    ]
    assert isinstance(offered[0], Tools) and offered[0] is offered[1] and offered[1] is not offered[2]
    # Keys in another order are another text: chat templates may render them so.
    turned = [{"content": "be good", "role": "system"}, first[1]]
    other = reader.parse(payload("a", turned, ids, written=written))["request"]["messages"]
    assert list(other[0]) == ["content", "role"]
    assert other[0] is not before[0]


def test_a_torn_record_is_refused_as_ever() -> None:
    whole = payload("a", [{"role": "user", "content": "x" * 300}], list(range(300)))
    reader = RecordReader()
    reader.parse(whole)
    for cut in range(0, len(whole), 37):
        with pytest.raises(InvalidInput):
            reader.parse(whole[:cut])
    assert plain(reader.parse(whole)) == parse(whole)
