"""Transcripts: every message of a trajectory stands once, and the conversation of each step can be put together."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from core.errors import NotFound
from core.pool import Pool
from core.types import Step
from studio.widgets.steps import transcript as module
from studio.widgets.steps.transcript import shortened, transcript
from tests.pages.test_messages import TURN, call, texts, tool_result

FINAL = {"role": "assistant", "content": "It is done."}
SECOND = {"role": "assistant", "content": "", "tool_calls": [call("c", "write", '{"path": "y"}')]}


def step(uid: str, index: int, messages, answer, **more) -> Step:
    return Step(
        uid, "t", "p", index, 1_700_000_000.0 + index, messages=messages, response_message=answer,
        prompt_ids=[1], response_ids=[2 + index], token_source="engine", **more,
    )  # fmt: skip


@pytest.fixture
def pool(tmp_path: Path):
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: 1_700_000_000.0)
    yield opened
    opened.close()


@pytest.fixture
def filled(pool):
    """Three turns in a chain, and a fork from the first."""
    chain = [TURN[0]], [*TURN], [*TURN, SECOND, tool_result("other-id", "written")]
    linked = {"transition": "extends"}
    pool.steps.append(
        [
            step("s0", 0, chain[0], TURN[1]),
            step("s1", 1, chain[1], SECOND, parent_step_uid="s0", n_shared_messages=2, **linked),
            step("s2", 2, chain[2], FINAL, parent_step_uid="s1", n_shared_messages=5, **linked),
            step(
                "s3", 3, [*TURN[:2], tool_result("a", "again")], FINAL, parent_step_uid="s0", n_shared_messages=2,
                transition="forked", error="late",
            ),
        ]
    )  # fmt: skip
    return pool


def test_a_turn_has_what_its_prompt_adds(filled):
    lines: dict[str, list] = {}
    for turn in filled.trajectories.turns("t"):
        before = lines.get(turn["parent_step_uid"], [])
        messages = [*before[: turn["n_shared_messages"] or 0], *turn["messages"]]
        whole = filled.steps.get(turn["step_uid"])
        assert messages == whole["messages"] and turn["response_message"] == whole["response_message"]
        lines[turn["step_uid"]] = [*messages, turn["response_message"]]
    assert len(lines) == 4
    with pytest.raises(NotFound, match="No trajectory 'none'"):
        filled.trajectories.turns("none")


def test_results_stand_beside_the_calls_of_the_turn_before(filled):
    turns = transcript(filled.trajectories.turns("t"))
    assert [[entry["role"] for entry in turn["entries"]] for turn in turns] == [
        ["user", "assistant"], ["assistant"], ["assistant"], ["tool", "assistant"],
    ]  # fmt: skip
    calls = turns[0]["entries"][1]["calls"]
    assert [one["result"]["parts"][0]["text"] for one in calls] == ["x y", "content of x"]
    rewritten = turns[1]["entries"][0]["calls"][0]
    assert rewritten["result"]["parts"][0]["text"] == "written", "its call id was rewritten; matched by order"
    assert [place for place, _ in turns[1]["hidden"]] == [0, 1] and [place for place, _ in turns[2]["hidden"]] == [0]
    assert turns[3]["entries"][0]["parts"][0]["text"] == "again", "a result that the first turn does not show"
    assert turns[3]["marks"][0].startswith("Forked") and turns[3]["marks"][-1] == "The call failed: late"
    assert [turn["parent"] for turn in turns] == [None, 0, 1, 0]


def test_every_text_stands_once(filled):
    shown = [text for turn in transcript(filled.trajectories.turns("t")) for text in texts(turn["entries"]) if text]
    for text in ("go", "x y", "content of x", "written", "again"):
        assert shown.count(text) == 1, text
    assert shown.count("It is done.") == 2, "two turns end with it"


def test_long_texts_of_a_huge_transcript_are_cut_and_counted(filled, monkeypatch):
    turns = transcript(filled.trajectories.turns("t"))
    assert shortened(copy.deepcopy(turns)) == 0
    monkeypatch.setattr(module, "MAX_CHARS", 10)
    monkeypatch.setattr(module, "CUT_CHARS", 8)
    assert shortened(turns) == 5
    assert turns[2]["entries"][0]["parts"][0]["text"] == "It is do\n… 3 more characters: open the step"


def test_an_answer_that_the_client_sends_back_in_another_spelling_stands_once(pool):
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [call("a", "ls")]}
    sent_back = {"content": "I look.", "role": "assistant", "refusal": None, "tool_calls": [call("a", "ls")]}
    result = tool_result("a", "x y")
    linked = {"parent_step_uid": "s0", "n_shared_messages": 1}
    pool.steps.append(
        [
            step("s0", 0, [TURN[0]], answer),
            step("s1", 1, [TURN[0], sent_back, result], FINAL, transition="extends", **linked),
            step("s2", 2, [TURN[0], sent_back, tool_result("a", "again")], FINAL, transition="forked", **linked),
        ]
    )
    turns = transcript(pool.trajectories.turns("t"))
    assert [[entry["role"] for entry in turn["entries"]] for turn in turns] == [
        ["user", "assistant"], ["assistant"], ["tool", "assistant"],
    ]  # fmt: skip
    assert turns[0]["entries"][1]["calls"][0]["result"]["parts"][0]["text"] == "x y"
    assert turns[1]["hidden"] == [[0, sent_back], [1, result]] and turns[2]["hidden"] == [[0, sent_back]]
    assert turns[2]["entries"][0]["parts"][0]["text"] == "again"
