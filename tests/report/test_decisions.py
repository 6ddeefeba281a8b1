"""A group's summary: what decides, from messages that an agent could have written."""

from __future__ import annotations

import pytest

from core.pool import Pool
from core.report.decisions import summarise
from core.types import Step
from tests.editing.conftest import call, done

TASK = "Find the file.\n\nThen read it."


def attempt(uid, *answers):
    """Steps of an attempt: each answer is (text, calls)."""
    messages, steps = [{"role": "system", "content": "You help."}, {"role": "user", "content": TASK}], []
    for k, (text, calls) in enumerate(answers):
        answer = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        steps.append(
            Step(
                step_uid=f"{uid}.{k}",
                trajectory_uid=uid,
                prompt_uid="g",
                step_index=k,
                created_at=1e9 + k,
                messages=list(messages),
                response_message=answer,
                parent_step_uid=f"{uid}.{k - 1}" if k else None,
                n_shared_messages=len(messages) - 1 if k else 0,
                transition="extends" if k else None,
            )
        )
        messages += [answer, {"role": "tool", "content": f"result {uid}", "tool_call_id": "call_0"}]
    return steps


@pytest.fixture
def pool(tmp_path):
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1)
    yield opened
    opened.close()


def test_the_call_that_decides_is_named(pool):
    search = ("I search.", [call("search", '{"name": "a", "deep": true}')])
    again = ("Let me look for it.", [call("search", '{"deep":true,"name":"a"}')])
    read, guess = ("", [call("read", '{"path": "a"}')]), ("", [call("write", '{"path": "a"}')])
    pool.steps.append(
        attempt("w1", search, read, ("It is 4. Done.", []))
        + attempt("w2", again, read, ("It is 4. Finished.", []))
        + attempt("l1", search, guess, ("It is 5.", []))
        + attempt("l2", search, guess)
        + attempt("u", ("", [call("list", "{}")])),
        completions=[*done("w1", "w2", reward=1.0), *done("l1", "l2", reward=0.0)],
    )
    summary = summarise(pool, pool.groups.get("g")["trajectories"])
    assert summary.task == TASK
    first, deciding, *rest = summary.decisions
    assert (first.n_shared, first.last, first.n_attempts, first.agreement, first.explained) == (0, None, 5, 0.8, 0.0)
    assert [way.action.text for way in first.ways] == ['search({"deep":true,"name":"a"})', "list({})"]
    assert first.ways[1].mean is None and first.ways[1].n_scored == 0
    assert summary.deciding is deciding and (deciding.explained, deciding.agreement) == (1.0, 0.5)
    assert deciding.last.text == 'search({"deep":true,"name":"a"})'
    won, lost = deciding.ways
    assert (won.action.text, won.trajectory_uids, won.mean) == ('read({"path":"a"})', ("w1", "w2"), 1.0)
    assert (lost.action.text, lost.trajectory_uids, lost.mean) == ('write({"path":"a"})', ("l1", "l2"), 0.0)
    assert lost.action.step_uid == "l1.1"
    ends = [one for one in rest if any(way.action is None for way in one.ways)]
    assert [[way.trajectory_uids for way in one.ways] for one in ends] == [[("l1",), ("l2",)]]
    sentences = [one for one in rest if one not in ends]
    assert [[way.action.text for way in one.ways] for one in sentences] == [["Done.", "Finished."]]
    assert [one.last.text for one in sentences] == ["It is 4."]


def test_equal_rewards_and_a_single_attempt_decide_nothing(pool):
    pool.steps.append(attempt("a", ("Yes.", [])) + attempt("b", ("No.", [])), completions=done("a", "b", reward=1.0))
    summary = summarise(pool, pool.groups.get("g")["trajectories"])
    assert summary.deciding is None and [one.explained for one in summary.decisions] == [None]
    assert summarise(pool, pool.groups.get("g")["trajectories"][:1]).decisions == ()
