"""Findings against definitions written in plain Python, over random pools; and what each call shows by itself."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.pool import Pool
from core.pool.query.views import FILTERS
from core.pool.state.findings import BIT, FINDINGS, OF_STEPS, find_in_call, names_of, tool_failed
from core.types import Annotation, Step, View
from tests.effort import settings

NOW = 1e9
TOOLS = [{"type": "function", "function": {"name": "run"}}]
ANSWERS: list[dict[str, Any] | None] = [
    None,
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "assistant", "content": "run it", "tool_calls": [{"function": {"name": "run", "arguments": "{}"}}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "run", "arguments": "{"}}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "sing", "arguments": "{}"}}]},
    {"role": "assistant", "content": "<tool_call>run</tool_call>"},
]
BROKEN = (5, 6, 7)
RESULTS = ["fine", "Error: no such file", "ok\nTraceback (most recent call last)\n  x"]


def make(steps: Sequence[dict[str, Any]]) -> list[Step]:
    """Steps in order; each one's parent is the step before it in its trajectory."""
    made: list[Step] = []
    before: dict[str, tuple[str, int]] = {}
    for number, facts in enumerate(steps):
        uid, said, result = facts["trajectory"], facts["answer"], facts["result"]
        parent, index = before.get(uid, (None, -1))
        messages = [{"role": "user", "content": f"task {uid}"}]
        if parent is not None:
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": RESULTS[result]})
        answer = None if ANSWERS[said] is None else json.loads(json.dumps(ANSWERS[said]))
        for call in (answer or {}).get("tool_calls", ()):
            call["id"] = f"call-{number}"  # ids differ between equal calls
        made.append(
            Step(
                step_uid=f"s{number}",
                trajectory_uid=uid,
                prompt_uid=f"p{int(uid[1:]) % 2}",
                step_index=index + 1,
                created_at=NOW + number,
                call_kind=facts["kind"],
                status=facts["status"],
                transition=None if parent is None else facts["transition"],
                mismatch=facts["mismatch"],
                finish_reason=facts["finish"],
                prompt_ids=[1, 2],
                response_ids=[3, said],
                messages=messages,
                response_message=answer,
                tools=TOOLS,
                parent_step_uid=parent,
                n_shared_messages=0 if parent is None else 1,
            )
        )
        before[uid] = (f"s{number}", index + 1)
    return made


def brute_force(
    made: Sequence[Step], steps: Sequence[dict[str, Any]], state: dict[str, dict[str, Any]]
) -> list[set[str]]:
    """The definitions, one after the other. ``state``: reward, human, check, correct, outcome of each trajectory."""
    findings: list[set[str]] = [set() for _ in made]
    for i, (step, facts) in enumerate(zip(made, steps, strict=True)):
        mine = findings[i]
        if facts["finish"] == "length":
            mine.add("truncated")
        if step.status == "ok" and facts["answer"] == 1:
            mine.add("empty")
        if facts["answer"] in BROKEN:
            mine.add("malformed_tool_call")
        if step.mismatch or step.status == "mismatch":
            mine.add("length_mismatch")
        if step.transition in ("realigned", "tail_replaced"):
            mine.add("drift")
        children = [j for j, other in enumerate(made) if other.parent_step_uid == step.step_uid]
        if any(steps[j]["result"] and made[j].transition != "compacted" for j in children):
            mine.add("tool_error")
        if step.call_kind == "main" and step.status == "ok":
            mains = [
                j
                for j in range(i + 1)
                if made[j].trajectory_uid == step.trajectory_uid
                and (made[j].call_kind, made[j].status) == ("main", "ok")
            ]
            answers = [steps[j]["answer"] for j in mains]
            if answers[-1] != 1 and answers[-2:-1] == answers[-1:]:
                mine.add("repeated_step")
            if answers[-1] != 1 and answers.count(answers[-1]) >= 3:
                mine.add("looping")
        own = state[step.trajectory_uid]
        if own["reward"] is not None and own["reward"] > 0.5 and not own["human"]:
            low = [value for value in (own["check"], own["complete"]) if value is not None and value <= 0.5]
            if low or own["correct"] is False or own["outcome"] == "failed":
                mine.add("reward_hacking")
        family = {s.trajectory_uid for s in made if s.prompt_uid == step.prompt_uid}
        rewards = [state[uid]["reward"] for uid in family if state[uid]["reward"] is not None]
        if len(rewards) >= 2 and len(set(rewards)) == 1:
            mine.add("zero_variance")
    return findings


facts = st.fixed_dictionaries(
    {
        "trajectory": st.sampled_from(["t0", "t1", "t2", "t3"]),
        "answer": st.sampled_from([0, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7]),
        "result": st.sampled_from([0, 0, 0, 1, 2]),
        "kind": st.sampled_from(["main", "main", "main", "subagent"]),
        "status": st.sampled_from(["ok", "ok", "ok", "error", "mismatch"]),
        "transition": st.sampled_from(["extends", "extends", "realigned", "tail_replaced", "compacted", "forked"]),
        "mismatch": st.sampled_from([None, None, "lengths"]),
        "finish": st.sampled_from(["stop", None, "length"]),
    }
)
rewards = st.sampled_from([None, 0.0, 0.5, 1.0])
said = st.fixed_dictionaries(
    {
        "complete": rewards,
        "outcome": st.sampled_from([None, "failed"]),
        "check": rewards,
        "later": st.sampled_from([None, ("judge", 1.0), ("judge", 0.0), ("human", 1.0)]),
        "correct": st.sampled_from([None, True, False]),
    }
)


@given(st.lists(facts, min_size=1, max_size=14), st.lists(said, min_size=4, max_size=4), st.randoms())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_findings_are_what_their_definitions_say(
    steps: list[dict[str, Any]], opinions: list[dict[str, Any]], rng: random.Random
) -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW, threads=1)
    made = make(steps)
    cut = rng.randint(0, len(made))  # what a step shows does not depend on what arrives with it
    pool.steps.append(made[:cut])
    pool.steps.append(made[cut:])
    state: dict[str, dict[str, Any]] = {}
    uids = sorted({step.trajectory_uid for step in made})
    notes: list[Annotation] = []
    for uid in uids:
        own = opinions[int(uid[1:])]
        reward, human = own["complete"], False
        if own["check"] is not None:
            notes.append(Annotation("reward", own["check"], "v", "verifier:unit", NOW, trajectory_uid=uid))
            reward = own["check"]
        if own["later"] is not None:
            source, reward = own["later"]
            human = source == "human"
            notes.append(Annotation("reward", reward, "r", source, NOW, trajectory_uid=uid))
        if own["correct"] is not None:
            notes.append(Annotation("correct", own["correct"], "r", "human", NOW, trajectory_uid=uid))
        state[uid] = {**own, "reward": reward, "human": human}
    closing = [{"trajectory_uid": u, "reward": state[u]["complete"], "outcome": state[u]["outcome"]} for u in uids]
    pool.steps.append([], completions=closing)
    if notes:
        pool.labels.annotate(notes)
    pool.labels.undo(
        pool.labels.annotate([Annotation("reward", 0.75, "x", "judge", NOW, trajectory_uid=uid) for uid in uids])
    )
    expected = brute_force(made, steps, state)
    for rebuilt in (False, True):
        if rebuilt:
            pool.integrity.rebuild_state()
        rows = {row["step_uid"]: row for row in pool.steps.page(limit=None).to_pylist()}
        for step, wanted in zip(made, expected, strict=True):
            assert set(rows[step.step_uid]["findings"]) == wanted
            family = {state[s.trajectory_uid]["reward"] for s in made if s.prompt_uid == step.prompt_uid}
            if family == {None}:
                assert rows[step.step_uid]["difficulty"] is None
        counted = dict(pool.stats.facets(View(), ["findings"])["findings"])
        assert counted == {n: c for n in FINDINGS if (c := sum(n in wanted for wanted in expected))}
        for row in pool.trajectories.page(limit=None).to_pylist():
            of_steps = [w for s, w in zip(made, expected, strict=True) if s.trajectory_uid == row["trajectory_uid"]]
            assert set(row["findings"]) == set().union(*of_steps)
    for name in FINDINGS:
        hits = set(pool.steps.page(View({"findings": name}), limit=None)["step_uid"].to_pylist())
        assert hits == {step.step_uid for step, wanted in zip(made, expected, strict=True) if name in wanted}
    whole = pool.trajectories.get(made[0].trajectory_uid)
    assert set(whole["steps"][0]["findings"]) == expected[0]
    pool.close()


def test_difficulty_follows_rewards_of_siblings() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    pool.steps.append([Step(f"s{i}", f"t{i}", "p", 0, NOW, channel="val" if i == 4 else "train") for i in range(5)])
    difficulty = lambda: {r["trajectory_uid"]: r["difficulty"] for r in pool.trajectories.page(limit=None).to_pylist()}  # noqa: E731
    assert set(difficulty().values()) == {None}
    pool.steps.append([], completions=[{"trajectory_uid": f"t{i}", "reward": float(i == 0)} for i in range(3)])
    assert difficulty() == {f"t{i}": pytest.approx(2 / 3) for i in range(4)} | {"t4": None}
    edit = pool.labels.annotate([Annotation("reward", 1.0, "me", "test", NOW, trajectory_uid="t1")])
    assert difficulty()["t3"] == pytest.approx(1 / 3)
    pool.labels.undo(edit)
    assert difficulty()["t3"] == pytest.approx(2 / 3)
    pool.steps.append([], completions=[{"trajectory_uid": "t0", "channel": "val"}])  # a member leaves for another group
    assert difficulty() == {"t0": 0.0, "t4": 0.0, "t1": 1.0, "t2": 1.0, "t3": 1.0}
    ready = View({"ready": {"n_rollouts": 2}})
    assert set(pool.trajectories.page(ready, limit=None)["trajectory_uid"].to_pylist()) == {"t1", "t2"}
    pool.close()


def test_a_pool_from_before_is_observed_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "pool.duckdb"
    pool = Pool.open(path, clock=lambda: NOW)
    steps = [
        {
            **dict.fromkeys(("mismatch", "finish")),
            "trajectory": "t0",
            "answer": 4,
            "result": i % 3,
            "kind": "main",
            "status": "ok",
            "transition": "extends",
        }
        for i in range(5)
    ]
    pool.steps.append(make(steps))
    before = pool.steps.page(order="step_uid", limit=None)
    assert {"repeated_step", "tool_error", "looping"} <= {n for row in before["findings"].to_pylist() for n in row}
    with pool._db.write() as cursor:
        cursor.execute("DELETE FROM step_findings")
        cursor.execute("UPDATE step_state SET finding_bits = 0")
    pool.close()
    again = Pool.open(path, clock=lambda: NOW)
    assert again.steps.page(order="step_uid", limit=None).equals(before)
    again.close()


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Error: ENOENT", True), ("error executing tool bash: x", True), ("ValueError: bad", True),
        ("fatal: not a git", True),
        ('{"error": "no such key"}', True), ('{"error": {"code": 3}}', True), ('{"ok": false}', True),
        ('{"is_error": true}', True), ("some output\nexit code: 1", True), ("<returncode>2</returncode>", True),
        ("bash: foo: command not found", True), ("Failed to open the file", True),
        ("x" * 9000 + "\nExit code 127", True),
        ("3 errors were fixed", False), ("Error handling in Go is explicit", False), ('{"error": null}', False),
        ("exit code: 0", False), ('{"error": ""}', False), ("", False), ("def error(): pass", False),
        ("Errors and how to read them", False), ('{"success": true}', False), ("the command not found page", False),
    ],
)  # fmt: skip
def test_a_failed_tool_is_told_from_a_text_about_errors(text: str, failed: bool) -> None:
    assert tool_failed({"role": "tool", "content": text}) is failed
    assert tool_failed({"role": "tool", "content": [{"type": "text", "text": text}]}) is failed


@pytest.mark.parametrize(
    ("call", "broken"),
    [
        ({"function": {"name": "run", "arguments": '{"a": 1}'}}, False),
        ({"function": {"name": "run", "arguments": ""}}, False),
        ({"function": {"name": "run", "arguments": {"a": 1}}}, False),
        ({"function": {"name": "run", "arguments": "[1]"}}, True),
        ({"function": {"name": "run", "arguments": '{"a": '}}, True),
        ({"function": {"name": "sing", "arguments": "{}"}}, True),
        ({"function": {"arguments": "{}"}}, True),
        ({"custom": {"name": "run", "input": "not json"}}, False),
        ("nothing", True),
    ],
)
def test_a_tool_call_is_an_object_for_an_offered_tool(call: Any, broken: bool) -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    seen = find_in_call(answer, [], TOOLS, status="ok", finish_reason="tool_calls", response=None)
    assert names_of(seen.bits) == (["malformed_tool_call"] if broken else [])


def test_a_built_in_tool_is_offered_by_its_type() -> None:
    call = {"function": {"name": "web_search", "arguments": "{}"}}
    for tools, broken in (
        ([{"type": "web_search"}], False),
        (TOOLS, True),
        ([{"name": "web_search"}], False),
        (None, False),
    ):
        seen = find_in_call({"tool_calls": [call]}, [], tools, status="ok", finish_reason=None, response=None)
        assert bool(seen.bits & BIT["malformed_tool_call"]) is broken


def test_only_equal_answers_have_one_hash() -> None:
    def hashed(answer: dict[str, Any] | None, response: bytes | None = None) -> int | None:
        return find_in_call(answer, [], None, status="ok", finish_reason=None, response=response).answer_hash

    call = {"id": "1", "function": {"name": "run", "arguments": "{}"}}
    one = hashed({"content": "x", "tool_calls": [call]})
    assert one == hashed({"content": "x", "tool_calls": [{**call, "id": "2"}]})
    assert one != hashed({"content": "x"})
    assert one != hashed({"content": "x", "tool_calls": [{**call, "function": {"name": "run", "arguments": "{} "}}]})
    assert hashed(None, b"\1\0\0\0") == hashed(None, b"\1\0\0\0") != hashed(None, b"\2\0\0\0")
    assert hashed(None) is None
    assert hashed({"content": " "}) is None


def test_every_finding_is_defined_and_filters_name_them() -> None:
    assert list(BIT.values()) == [1 << i for i in range(len(FINDINGS))], "bits are stored: append only"
    assert all(doc.endswith(".") and len(doc) > 30 for doc in FINDINGS.values())
    assert set(OF_STEPS) < set(FINDINGS)
    assert all(name in FILTERS["findings"].doc for name in FINDINGS)
