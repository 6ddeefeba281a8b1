"""Feedback against a plain reference: any order of words, revisions, steps and restarts gives the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import NotFound
from core.pool import Pool
from core.types import Step, View
from tests.effort import settings

STEPS = {
    uid: Step(
        step_uid=uid,
        trajectory_uid=f"t-{uid[1]}",
        prompt_uid="p",
        step_index=int(uid[2]),
        created_at=1000.0,
        prompt_ids=[1, 2],
        response_ids=[3],
        response_id=f"resp-{uid}",
        journal_segment="s",
        journal_offset=int(uid[1:]),
    )
    for uid in ("s00", "s01", "s10")
}


def word(uid: str, kind: str, value: Any, received_at: float, **fields: Any) -> dict[str, Any]:
    names = dict.fromkeys(("step_uid", "trajectory_uid", "response_id"))
    reward = {"up": 1.0, "down": 0.0}.get(value) if kind == "thumbs" else value if kind == "score" else None
    base = {"choice_index": 0, "author": "kim", "source": "human", "note": None, "metadata": {}, "given_at": None}
    said = {"feedback_uid": uid, "kind": kind, "value": value, "reward": reward, "received_at": received_at}
    return {**names, **base, **said, **fields}


def rewards(pool: Pool) -> dict[str, tuple[Any, list[str], int]]:
    steps = pool.steps.page(View(), order="step_uid", limit=None).to_pylist()
    return {row["step_uid"]: (row["reward"], row["tags"], row["n_notes"]) for row in steps}


targets = st.sampled_from(sorted(STEPS)).flatmap(
    lambda uid: st.sampled_from([{"step_uid": uid}, {"response_id": f"resp-{uid}"}])
)
values = st.one_of(
    st.tuples(st.just("thumbs"), st.sampled_from(["up", "down", None])),
    st.tuples(st.just("score"), st.sampled_from([0.0, 0.25, None])),
    st.tuples(st.just("event"), st.sampled_from(["copied", "accepted", None])),
    st.tuples(st.just("comment"), st.sampled_from(["why?", None])),
)
moves = st.lists(
    st.one_of(
        st.sampled_from(sorted(STEPS)),
        st.tuples(st.sampled_from(["f1", "f2", "f3"]), values, targets, st.sampled_from([None, 5.0, 9.0])),
        st.just("reopen"),
    ),
    min_size=2,
    max_size=14,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves)
def test_any_order_gives_the_same(moves: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("pool") / "pool.duckdb"
    pool = Pool.open(path, memory="256MB", threads=1, clock=lambda: 2000.0)
    there: set[str] = set()
    words: dict[str, list[dict[str, Any]]] = {}
    applied: list[tuple[str, dict[str, Any]]] = []
    for number, move in enumerate(moves):
        if move == "reopen":
            pool.close()
            pool = Pool.open(path, memory="256MB", threads=1, clock=lambda: 2000.0)
        elif isinstance(move, str):
            pool.steps.append([STEPS[move]])
            if move not in there:
                there.add(move)
                for uid, spoken in words.items():
                    current = in_force(spoken)
                    if step_of(current) == move:
                        applied = [entry for entry in applied if entry[0] != uid] + [(uid, current)]
        else:
            uid, (kind, value), target, at = move
            item = word(uid, kind, value, 100.0 + number, **target, given_at=at)
            spoken = words.setdefault(uid, [])
            same = [other for other in spoken if equal(other, item)]
            repeated = bool(same) if at is not None else bool(spoken) and equal(spoken[-1], item)
            pool.steps.append([], feedback=[item])
            if repeated:
                continue
            spoken.append(item)
            if in_force(spoken) is item:
                applied = [entry for entry in applied if entry[0] != uid]
                if step_of(item) in there:
                    applied.append((uid, item))
    expected = {}
    for step in sorted(there):
        mine = [item for _, item in applied if step_of(item) == step and item["value"] is not None]
        scores = [item["reward"] for item in mine if item["kind"] in ("thumbs", "score")]
        tags = sorted({f"event:{item['value']}" for item in mine if item["kind"] == "event"})
        expected[step] = (scores[-1] if scores else None, tags, sum(item["kind"] == "comment" for item in mine))
    assert rewards(pool) == expected
    pool.integrity.rebuild_state()
    assert rewards(pool) == expected
    items = {row["feedback_uid"]: row for row in pool.feedback.find()}
    assert set(items) == set(words)
    for uid, row in items.items():
        current = in_force(words[uid])
        assert (row["kind"], row["value"], row["n_revisions"]) == (current["kind"], current["value"], len(words[uid]))
        arrived = step_of(current) in there
        assert row["state"] == ("withdrawn" if current["value"] is None else "applied" if arrived else "pending")
        assert row["step_uid"] == (step_of(current) if arrived else None)
        assert len(pool.feedback.get(uid)["revisions"]) == len(words[uid])
    assert pool.feedback.counts()["n_pending"] == sum(row["state"] == "pending" for row in items.values())
    pool.close()


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[key] == other[key] for key in one if key != "received_at")


def step_of(item: dict[str, Any]) -> str:
    return item["step_uid"] or item["response_id"].removeprefix("resp-")


def in_force(spoken: list[dict[str, Any]]) -> dict[str, Any]:
    best = spoken[0]
    for item in spoken[1:]:
        if given_at(item) >= given_at(best):
            best = item
    return best


def given_at(item: dict[str, Any]) -> float:
    return item["received_at"] if item["given_at"] is None else item["given_at"]


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    opened = Pool.open(tmp_path / "pool.duckdb", memory="256MB", threads=1, clock=lambda: 2000.0)
    yield opened
    opened.close()


def test_a_correction_is_kept_whole_and_can_be_filtered(pool: Pool) -> None:
    pool.steps.append([STEPS["s00"]], feedback=[word("f", "correction", "It is 42.", 5.0, step_uid="s00")])
    values = {row["kind"]: row["value"] for row in pool.labels.annotations(step_uid="s00")}
    assert values == {"correction": "It is 42.", "tag": "corrected"}
    assert pool.steps.count(View({"tags": ["corrected"]})) == 1


def test_a_trajectory_is_judged_before_it_begins(pool: Pool) -> None:
    pool.steps.append([], feedback=[word("f", "thumbs", "down", 5.0, trajectory_uid="t-0")])
    assert pool.feedback.find(trajectory_uid="t-0") == []
    assert [row["state"] for row in pool.feedback.find(pending=True)] == ["pending"]
    pool.steps.append([], registrations=[{"trajectory_uid": "t-0", "at": 6.0}])
    assert pool.trajectories.get("t-0")["reward"] == 0.0, "a thumb down is 0 and not unscored"
    pool.steps.append([STEPS["s00"]])
    assert [row["state"] for row in pool.feedback.find(trajectory_uid="t-0")] == ["applied"]


def test_choices_of_one_answer_are_told_apart(pool: Pool) -> None:
    call = {"trajectory_uid": "t", "prompt_uid": "p", "created_at": 1.0, "response_id": "r", "journal_segment": "s"}
    old = [Step(step_uid=f"old.{i}", step_index=i, journal_offset=1, response_ids=[i], **call) for i in range(2)]
    new = [Step(step_uid=f"new.{i}", step_index=2 + i, journal_offset=2, response_ids=[i], **call) for i in range(2)]
    pool.steps.append([*old, *new], feedback=[word("f", "thumbs", "up", 5.0, response_id="r", choice_index=1)])
    assert [row["step_uid"] for row in pool.feedback.find()] == ["new.1"], (
        "engines count anew: the newest answer is meant"
    )
    pool.steps.append([], feedback=[word("g", "thumbs", "up", 5.0, response_id="r", choice_index=2)])
    assert [row["feedback_uid"] for row in pool.feedback.find(pending=True)] == ["g"]


def test_a_person_may_undo_what_feedback_did(pool: Pool) -> None:
    pool.steps.append([STEPS["s00"]], feedback=[word("f", "thumbs", "up", 5.0, step_uid="s00")])
    action = pool.labels.actions()[0]
    assert action["label"] == "feedback"
    pool.labels.undo(action["action_uid"])
    assert rewards(pool)["s00"][0] is None
    pool.steps.append([], feedback=[word("f", "thumbs", "down", 6.0, step_uid="s00")])
    assert rewards(pool)["s00"][0] == 0.0


def test_unknown_feedback_is_named(pool: Pool) -> None:
    with pytest.raises(NotFound, match="No feedback 'x'"):
        pool.feedback.get("x")
