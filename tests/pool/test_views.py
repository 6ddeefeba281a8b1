"""Views: every filter against plain Python over the rows; the WHERE box computes the same and refuses the rest."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.datasets import freeze_version
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.views import FILTERS, parse_view
from core.pool.query.where import compile_where
from core.types import Annotation, Step, View
from tests.effort import settings

N_STEPS = 60
START = 1_700_000_000.0


def make_steps() -> list[Step]:
    rng = random.Random(7)
    return [
        Step(
            step_uid=f"s{i:02}",
            trajectory_uid=f"t{i // 6}",
            prompt_uid=f"p{i // 12}",
            step_index=i % 6,
            created_at=START + i * 60,
            channel="val" if (i // 6) % 5 == 0 else "train",
            source=rng.choice(["blackbox", "whitebox"]),
            agent=rng.choice(["claw", "codex", None]),
            model=rng.choice(["m1", "m2"]),
            token_source=rng.choice(["engine", "none"]),
            finish_reason=rng.choice(["stop", "length", None]),
            status=rng.choice(["ok", "ok", "error"]),
            prompt_ids=list(range(rng.randrange(1, 40))),
            response_ids=list(range(rng.randrange(0, 9))),
            reward=rng.choice([None, 0.0, 0.5, 1.0]),
            policy_version=rng.choice([None, 1, 2]),
            latency_s=rng.choice([None, 0.5, 2.0]),
            messages=[{"role": "user", "content": f'say "{i}" to\nÜmit'}],
            response_message={
                "role": "assistant",
                "content": f"answer {i}",
                "tool_calls": [{"function": {"name": rng.choice(["run", "read"]), "arguments": "{}"}}],
            },
            metadata={"task": {"id": i % 4, "name": f"n{i % 3}"}, "a.b": True, "run": f"r{i // 6 % 3}"}
            if i % 2
            else {},
        )
        for i in range(N_STEPS)
    ]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool.open(":memory:", clock=lambda: START)
    made.steps.append(make_steps(), completions=[{"trajectory_uid": f"t{i}", "reward": i / 4} for i in range(4)])
    made.labels.annotate([Annotation("tag", "x", "me", "test", START, step_uid=f"s{i:02}") for i in range(0, 60, 3)])
    made.labels.annotate([Annotation("tag", "y", "me", "test", START, step_uid=f"s{i:02}") for i in range(0, 60, 4)])
    made.labels.annotate([Annotation("note", "n", "me", "test", START, step_uid="s05")])
    made.labels.annotate([Annotation("quality", "bad", "me", "test", START, step_uid="s06")])
    made.labels.annotate([Annotation("quality", "good", "me", "test", START, trajectory_uid="t3")])
    made.labels.annotate([Annotation("trainable", False, "me", "test", START, trajectory_uid="t2")])
    made.labels.annotate([Annotation("correct", i < 20, "me", "test", START, step_uid=f"s{i:02}") for i in (8, 9, 21)])
    made.labels.annotate([Annotation("correct", False, "me", "test", START, trajectory_uid="t4")])
    made.labels.annotate([Annotation("note", "Looks like LUCK", "me", "test", START, trajectory_uid="t6")])
    made.labels.annotate([Annotation("quality", "good", "me", "test", START, step_uid="s11", note="bad luck here")])
    made.views.save("early", View({"created_at": {"before": START + 600}}))
    made.views.save("some text", View({"text": "answer 5"}))
    frozen = View({"trajectory_uid": "t2"})
    recipe = parse_recipe(
        {
            "channel": made.trajectories.get("t2", tokens=False)["channel"],
            "algorithm": "sft",
            "options": {"min_reward": None},
        }
    )
    freeze_version(made, "frozen", frozen, recipe, author="me")
    made.labels.undo(made.labels.annotate([Annotation("note", "no luck", "me", "test", START, step_uid="s12")]))
    yield made
    made.close()


@pytest.fixture(scope="module")
def table(pool: Pool) -> list[dict[str, Any]]:
    rows = pool.steps.page(limit=None).to_pylist()
    assert len(rows) == N_STEPS
    assert set(rows[0]) == set(STEP_COLUMNS)
    return rows


def within(value: Any, low: Any, high: Any) -> bool:
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


CASES: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
    ({"channel": "val"}, lambda r: r["channel"] == "val"),
    ({"channel": ["val", "train"]}, lambda r: True),
    ({"agent": [None, "codex"]}, lambda r: r["agent"] in (None, "codex")),
    ({"run": "r1"}, lambda r: int(r["trajectory_uid"][1:]) % 3 == 1),
    ({"agent": []}, lambda r: False),
    ({"agent": None}, lambda r: True),
    ({"source": "whitebox", "model": "m1"}, lambda r: r["source"] == "whitebox" and r["model"] == "m1"),
    ({"token_source": ["engine"]}, lambda r: r["token_source"] == "engine"),
    ({"status": "error"}, lambda r: r["status"] == "error"),
    ({"finish_reason": [None]}, lambda r: r["finish_reason"] is None),
    ({"reward": {"min": 0.5}}, lambda r: within(r["reward"], 0.5, None)),
    ({"reward": 0}, lambda r: r["reward"] == 0),
    ({"reward": [None, 0.5]}, lambda r: within(r["reward"], None, 0.5)),
    ({"reward_state": "unscored"}, lambda r: r["reward"] is None),
    ({"reward_state": "scored"}, lambda r: r["reward"] is not None),
    ({"trajectory_reward": {"min": 0.5, "max": 1}}, lambda r: within(r["trajectory_reward"], 0.5, 1)),
    ({"trajectory_reward_state": "unscored"}, lambda r: r["trajectory_reward"] is None),
    ({"quality": "bad"}, lambda r: r["step_uid"] == "s06"),
    ({"trajectory_quality": "good"}, lambda r: r["trajectory_uid"] == "t3"),
    ({"trainable": False}, lambda r: not r["trainable"]),
    ({"complete": True, "trainable": True}, lambda r: r["complete"] and r["trainable"]),
    ({"is_last": True}, lambda r: r["is_last"]),
    ({"policy_version": [2, 2]}, lambda r: r["policy_version"] == 2),
    ({"n_prompt_tokens": [10, 20]}, lambda r: within(r["n_prompt_tokens"], 10, 20)),
    ({"n_response_tokens": {"max": 0}}, lambda r: r["n_response_tokens"] == 0),
    ({"latency_s": {"min": 1}}, lambda r: within(r["latency_s"], 1, None)),
    ({"step_index": 0}, lambda r: r["step_index"] == 0),
    ({"tags": "x"}, lambda r: "x" in r["tags"]),
    ({"tags": ["x", "y"]}, lambda r: bool(set(r["tags"]) & {"x", "y"})),
    ({"tags": {"all": ["x", "y"]}}, lambda r: {"x", "y"} <= set(r["tags"])),
    ({"tags": {"any": ["x"], "none": ["y"]}}, lambda r: "x" in r["tags"] and "y" not in r["tags"]),
    ({"tool_names": "read"}, lambda r: "read" in r["tool_names"]),
    ({"has_notes": True}, lambda r: r["step_uid"] == "s05"),
    ({"text": "ANSWER 17"}, lambda r: r["step_uid"] == "s17"),
    ({"text": 'say "5" to\nümit'}, lambda r: r["step_uid"] == "s05"),
    ({"created_at": {"after": START + 600}}, lambda r: int(r["step_uid"][1:]) >= 10),
    ({"created_at": [None, "2023-11-14T22:23:20+00:00"]}, lambda r: int(r["step_uid"][1:]) < 10),
    ({"trajectory_uid": ["t1", "t9"]}, lambda r: r["trajectory_uid"] in ("t1", "t9")),
    ({"prompt_uid": "p2"}, lambda r: r["prompt_uid"] == "p2"),
    ({"step_uid": [f"s{i:02}" for i in range(50)]}, lambda r: int(r["step_uid"][1:]) < 50),
    ({"metadata": {"task.id": 1}}, lambda r: (i := int(r["step_uid"][1:])) % 2 and i % 4 == 1),
    ({"metadata": {"task.name": "n0", "task.id": 3}}, lambda r: int(r["step_uid"][1:]) % 12 == 3),
    ({"correct": True}, lambda r: r["step_uid"] in ("s08", "s09")),
    ({"correct": False}, lambda r: r["step_uid"] == "s21"),
    ({"correct_state": "unlabelled"}, lambda r: r["step_uid"] not in ("s08", "s09", "s21")),
    ({"trajectory_correct": False}, lambda r: r["trajectory_uid"] == "t4"),
    ({"notes": "luck"}, lambda r: r["trajectory_uid"] == "t6" or r["step_uid"] == "s11"),
    ({"n_tokens": [20, 30]}, lambda r: 20 <= r["n_prompt_tokens"] + r["n_response_tokens"] <= 30),
    ({"n_steps": 6}, lambda r: True),
    ({"n_steps": [7, None]}, lambda r: False),
    ({"trajectory_tokens": [None, 130]}, lambda r: r["trajectory_tokens"] <= 130),
    ({"staleness": 0}, lambda r: r["policy_version"] == 2),
    ({"staleness": {"min": 1}}, lambda r: r["policy_version"] == 1),
    ({"difficulty": [0.1, 0.9]}, lambda r: r["prompt_uid"] == "p1"),
    ({"difficulty": 1}, lambda r: r["difficulty"] == 1),
    ({"findings": "truncated"}, lambda r: r["finish_reason"] == "length"),
    ({"findings": {"none": ["truncated", "zero_variance"]}}, lambda r: r["finish_reason"] != "length"),
    ({"findings": {"all": ["truncated", "empty"]}}, lambda r: False),
    ({"findings": ["reward_hacking"]}, lambda r: r["trajectory_uid"] == "t4"),
    ({"ready": True}, lambda r: r["trainable"] and r["trajectory_uid"] in ("t0", "t1", "t3")),
    ({"ready": False}, lambda r: not (r["trainable"] and r["trajectory_uid"] in ("t0", "t1", "t3"))),
    ({"ready": {"n_rollouts": 2}}, lambda r: r["trainable"] and r["trajectory_uid"] == "none"),
    ({"ready": {"max_staleness": 0}}, lambda r: False),
    ({"ready": {"max_staleness": 1}}, lambda r: r["trainable"] and r["trajectory_uid"] in ("t0", "t1", "t3")),
    ({"metadata": {"task": None}}, lambda r: int(r["step_uid"][1:]) % 2 == 0),
    ({"saved_view": "early"}, lambda r: int(r["step_uid"][1:]) < 10),
    ({"saved_view": ["early", "some text"], "step_index": 5}, lambda r: r["step_uid"] == "s05"),
    ({"dataset_version": "frozen"}, lambda r: r["trajectory_uid"] == "t2"),
    ({"dataset_version": "nobody"}, lambda r: False),
]


@pytest.mark.parametrize(("filters", "expected"), CASES, ids=[str(case[0])[:60] for case in CASES])
def test_a_filter_finds_what_it_says(
    pool: Pool, table: list[dict[str, Any]], filters: dict[str, Any], expected: Callable[[dict[str, Any]], bool]
) -> None:
    view = parse_view({"filters": filters})
    wanted = {r["step_uid"] for r in table if expected(r)}
    assert set(pool.steps.page(view, limit=None)["step_uid"].to_pylist()) == wanted
    assert pool.steps.count(view) == len(wanted)
    owners = {r["trajectory_uid"] for r in table if r["step_uid"] in wanted}
    assert set(pool.trajectories.page(view, limit=None)["trajectory_uid"].to_pylist()) == owners
    assert pool.trajectories.count(view) == len(owners)
    assert set(pool.training.plan_rows(view, channel=None)["step_uid"].to_pylist()) == wanted


def test_every_filter_is_tried() -> None:
    tried = {name for filters, _ in CASES for name in filters}
    assert set(FILTERS) - tried <= {"engine", "transition", "call_kind", "identity_source"}


@pytest.mark.parametrize(
    "filters",
    [
        {"nope": 1}, {"channel": 3}, {"reward": "high"}, {"reward": {"least": 1}}, {"reward": True},
        {"reward_state": "maybe"}, {"trainable": "yes"}, {"tags": {"some": ["x"]}}, {"tags": [None]}, {"text": ""},
        {"created_at": "yesterday"}, {"created_at": ["yesterday", None]}, {"metadata": {'a"b': 1}}, {"metadata": "x"},
        {"has_notes": 1}, {"step_uid": [1]},
        {"findings": "lazy"}, {"findings": {"some": []}}, {"notes": 3}, {"ready": "yes"}, {"ready": 1},
        {"ready": {"n_rollouts": 0}}, {"ready": {"n": 2}}, {"correct_state": "scored"}, {"correct": "true"},
        {"staleness": "old"}, {"n_steps": [1, 2, 3]}, {"saved_view": 3}, {"saved_view": [""]}, {"dataset_version": ""},
    ],
    ids=str,
)  # fmt: skip
def test_a_filter_that_does_not_fit_is_named(filters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_view({"filters": filters})
    assert raised.value.field == f"filters.{next(iter(filters))}"


CONDITIONS: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("reward > 0.25 AND channel = 'train'", lambda r: (r["reward"] or 0) > 0.25 and r["channel"] == "train"),
    ("agent IN ('claw') OR agent IS NULL", lambda r: r["agent"] in ("claw", None)),
    ("agent not in ('claw', 'x')", lambda r: r["agent"] == "codex"),
    ("n_prompt_tokens BETWEEN 5 AND 9", lambda r: 5 <= r["n_prompt_tokens"] <= 9),
    ("NOT (n_prompt_tokens + n_response_tokens >= 20)", lambda r: r["n_prompt_tokens"] + r["n_response_tokens"] < 20),
    ("preview LIKE 'answer 1%'", lambda r: r["preview"].startswith("answer 1")),
    ("upper(model) = 'M1'", lambda r: r["model"] == "m1"),
    ("list_contains(tags, 'x') AND len(tags) = 1", lambda r: r["tags"] == ["x"]),
    ("tags[1] = 'y'", lambda r: r["tags"][:1] == ["y"]),
    ("trajectory_reward = 0.5 AND complete", lambda r: r["trajectory_reward"] == 0.5 and r["complete"]),
    ("created_at >= '2023-11-14 22:23:20'::TIMESTAMP", lambda r: int(r["step_uid"][1:]) >= 10),
    ("CASE WHEN reward IS NULL THEN FALSE ELSE reward = 0 END", lambda r: r["reward"] == 0),
    ("coalesce(reward, -1) < 0", lambda r: r["reward"] is None),
    ("staleness = 1 AND difficulty IS NULL", lambda r: r["policy_version"] == 1 and r["difficulty"] is None),
    ("list_contains(findings, 'truncated')", lambda r: r["finish_reason"] == "length"),
    ("len(findings) = 0 AND NOT coalesce(correct, FALSE)", lambda r: not r["findings"] and not r["correct"]),
    ("model = 'm1' -- the first", lambda r: r["model"] == "m1"),
    ("agent = 'it''s' OR 1 = 1", lambda r: True),
]


@pytest.mark.parametrize(("where", "expected"), CONDITIONS, ids=[case[0][:50] for case in CONDITIONS])
def test_a_condition_computes_what_it_says(
    pool: Pool, table: list[dict[str, Any]], where: str, expected: Callable[[dict[str, Any]], bool]
) -> None:
    wanted = {r["step_uid"] for r in table if expected(r)}
    assert set(pool.steps.page(View(where=where), limit=None)["step_uid"].to_pylist()) == wanted


ATTACKS = [
    "1=1) UNION SELECT * FROM steps --", "1=1; DROP TABLE steps", "1=1) ORDER BY (1", "1=1 LIMIT 1",
    "(SELECT 1) = 1", "EXISTS (SELECT 1)", "step_uid IN (SELECT step_uid FROM steps)", "reward > ALL (SELECT 1)",
    "read_text('/etc/passwd') = ''", "getenv('HOME') = ''", "current_setting('threads') = 1", "query('x') = 1",
    "sum(reward) > 1", "row_number() OVER () = 1", "s.reward > 1", "steps.reward > 1", "main.lower(agent) = ''",
    "* = 1", "COLUMNS('a') = 1", "unnest(tags) = 'x'", "nextval('x') = 1", "random() > 0.5", "sleep(1)", "reward = ?",
    "reward = $1", "step_id = 1", "list_transform(tags, lambda x: x) IS NULL", "agent = 'x'::BLOB", "x'00' = agent",
    "reward >", "", "pg_typeof(1) = ''", "1 FROM steps WHERE 1=1", "1=1) GROUP BY ALL HAVING (1=1", "{'a': 1} IS NULL",
    "1=1) WINDOW w AS (", "1=1) OR (1=1", "1=1, 2=2", "repeat('x', 1000000000) = ''", "agent COLLATE nocase = ''",
    "a" * 20_000,
    "(" * 300 + "1=1" + ")" * 300 + " AND " + " AND ".join(["NOT (" * 120 + "1=1" + ")" * 120]),
]  # fmt: skip


@pytest.mark.parametrize("where", [a for a in ATTACKS if a], ids=lambda v: v[:40])
def test_anything_else_is_refused_and_explained(pool: Pool, where: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        pool.steps.count(View(where=where))
    assert raised.value.field == "where"
    assert raised.value.hint
    assert pool.steps.count() == N_STEPS


def test_a_condition_that_fails_on_the_data_is_explained(pool: Pool) -> None:
    for where in ("preview > 3", "preview::INTEGER = 1", "agent", "reward + agent > 1"):
        with pytest.raises(InvalidInput) as raised:
            pool.steps.page(View(where=where))
        assert raised.value.field == "where"


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_no_text_ever_gets_past_as_anything_but_a_condition(text: str) -> None:
    try:
        condition = compile_where(text)
    except InvalidInput as error:
        assert error.field == "where"
    else:
        assert condition is None or ";" not in condition.sql


@given(st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_constants_are_bound(text: str) -> None:
    if "\x00" in text:
        return
    condition = compile_where("agent = '" + text.replace("'", "''") + "'")
    assert condition is not None
    assert (condition.sql, condition.parameters) == ("(s.agent = ?)", (text,))


def test_facets_and_histogram_count_the_view(pool: Pool, table: list[dict[str, Any]]) -> None:
    view = View({"channel": "train"}, "n_prompt_tokens > 5")
    rows = [r for r in table if r["channel"] == "train" and r["n_prompt_tokens"] > 5]
    facets = pool.stats.facets(view, ["agent", "tags", "complete", "trajectory_uid"])
    for name in ("agent", "complete", "trajectory_uid"):
        assert dict(facets[name]) == {v: sum(r[name] == v for r in rows) for v in {r[name] for r in rows}}
    assert dict(facets["tags"]) == {tag: sum(tag in r["tags"] for r in rows) for tag in ("x", "y")}
    assert [n for _, n in facets["agent"]] == sorted((n for _, n in facets["agent"]), reverse=True)
    bars = pool.stats.histogram(view, "n_prompt_tokens", 7).to_pylist()
    assert len(bars) == 7
    assert sum(bar["n_steps"] for bar in bars) == len(rows)
    for bar in bars[:-1]:
        assert bar["n_steps"] == sum(bar["low"] <= r["n_prompt_tokens"] < bar["high"] for r in rows)
    assert sum(b["n_steps"] for b in pool.stats.histogram(View(), "created_at", 5).to_pylist()) == N_STEPS
    assert pool.stats.histogram(View({"agent": "nobody"}), "reward", 5).num_rows == 0
    with pytest.raises(InvalidInput):
        pool.stats.histogram(View(), "agent", 5)
    with pytest.raises(InvalidInput):
        pool.stats.facets(View(), ["step_id"])


def test_groups_say_what_their_trajectories_are(pool: Pool) -> None:
    trajectories = pool.trajectories.page(limit=None).to_pylist()
    for group in pool.groups.page(limit=None).to_pylist():
        members = [
            t for t in trajectories if (t["prompt_uid"], t["channel"]) == (group["prompt_uid"], group["channel"])
        ]
        rewards = [t["reward"] for t in members if t["reward"] is not None]
        mean = sum(rewards) / len(rewards)
        assert group["n_trajectories"] == len(members)
        assert group["n_complete"] == sum(t["complete"] for t in members)
        assert group["n_steps"] == sum(t["n_steps"] for t in members)
        assert group["n_scored"] == len(rewards)
        assert group["reward_mean"] == pytest.approx(mean)
        assert group["reward_std"] == (pytest.approx(statistics.stdev(rewards)) if len(rewards) > 1 else None)
        assert group["success_rate"] == pytest.approx(sum(r > 0.5 for r in rewards) / len(rewards))
        assert group["zero_variance"] == (len(rewards) >= 2 and len(set(rewards)) == 1)


@pytest.mark.parametrize("order", ["created_at desc", "reward", "reward desc", "agent", "trajectory_reward desc"])
def test_pages_hold_every_step_once(pool: Pool, order: str) -> None:
    whole = pool.steps.page(order=order, limit=None)["step_uid"].to_pylist()
    by_offset = [
        uid for o in range(0, 60, 7) for uid in pool.steps.page(order=order, limit=7, offset=o)["step_uid"].to_pylist()
    ]
    assert by_offset == whole
    by_cursor, cursor = [], None
    while True:
        page, cursor = pool.steps.page_after(order=order, limit=7, cursor=cursor)
        by_cursor += page["step_uid"].to_pylist()
        if cursor is None:
            break
    assert by_cursor == whole
    assert orjson.loads(page["metadata"][0].as_py()) == pool.steps.get(page["step_uid"][0].as_py())["metadata"]
    rewards = pool.steps.page(order="reward desc", limit=None)["reward"].to_pylist()
    known = [r for r in rewards if r is not None]
    assert rewards == sorted(known, reverse=True) + [None] * (len(rewards) - len(known))


def test_orders_and_cursors_that_are_none_are_refused(pool: Pool) -> None:
    for order in ("step_id", "reward sideways", "reward; DROP TABLE steps", "tags desc nulls first"):
        with pytest.raises(InvalidInput):
            pool.steps.page(order=order)
    _, cursor = pool.steps.page_after(order="reward", limit=1)
    for bad in ("x", cursor + "A", "bm90IGpzb24="):
        with pytest.raises(InvalidInput):
            pool.steps.page_after(order="reward", limit=1, cursor=bad)
    with pytest.raises(InvalidInput):
        pool.steps.page_after(order="created_at", limit=1, cursor=cursor)


def test_saved_views_and_recipes(pool: Pool) -> None:
    view = View({"channel": "val", "reward": [0, 1]}, "n_prompt_tokens > 3")
    pool.views.save("mine", view)
    pool.views.save("mine", view)
    saved = next(row for row in pool.views.all() if row["name"] == "mine")
    assert (saved["name"], saved["view"]) == ("mine", view)
    pool.views.delete("mine")
    with pytest.raises(NotFound):
        pool.views.delete("mine")
    with pytest.raises(InvalidInput):
        pool.views.save("broken", View(where="reward >"))
    pool.recipes.save("r", {"algorithm": "grpo"})
    assert pool.recipes.all()[0]["recipe"] == {"algorithm": "grpo"}


def test_bulk_reaches_all_that_match_and_is_one_action(pool: Pool) -> None:
    view = View({"channel": "train"}, "reward is null")
    n_steps = pool.steps.count(view)
    action, n = pool.labels.annotate_view(view, "step", "tag", "bulk", author="me", source="test", label="tag all")
    assert n == n_steps == pool.steps.count(View({"tags": "bulk"}))
    newest = pool.labels.actions(1)[0]
    assert (newest["action_uid"], newest["label"], newest["n_annotations"]) == (action, "tag all", n)
    pool.labels.undo(action)
    assert pool.steps.count(View({"tags": "bulk"})) == 0
    pool.labels.redo(action)
    assert pool.steps.count(View({"tags": "bulk"})) == n
    pool.labels.undo(action)
