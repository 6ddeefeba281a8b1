from __future__ import annotations

import random
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.tree.build import build
from core.types import Annotation, PolicyEvent, View
from tests.batch.keeping_all import SFT_ALL
from tests.effort import settings

from . import reference
from .conftest import T0, done, rollout


def label(kind, value, **target):
    return Annotation(kind=kind, value=value, author="me", source="test", created_at=T0, **target)


def reasons(made):
    return {r.reason: (r.n_groups, r.n_trajectories, r.n_steps) for r in made.excluded}


def uids_of(pool, view):
    return sorted(pool.steps.page(view, limit=None)["step_uid"].to_pylist())


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """Sixty trajectories with every property that a plan reads, drawn by a seed."""
    draw = random.Random(7)
    opened = Pool.open(tmp_path_factory.mktemp("varied") / "pool.duckdb", memory="512MB", threads=1)
    steps, completions, labels = [], [], []
    for _ in range(60):
        uid = f"t{draw.randrange(10**6):06d}"
        n = draw.randint(1, 5)
        versions = [draw.choice([1, 2, 3, 4, None] if draw.random() < 0.2 else [2, 3, 4]) for _ in range(n)]
        kinds = [draw.choice(["main"] * 6 + ["retry", "auxiliary"]) for _ in range(n)]
        trust = draw.choice([["engine"], ["engine"], ["engine", "retokenized", "logprobs"], ["none"]])
        sources = [draw.choice(trust) for _ in range(n)]
        lengths = [draw.choice([1, 2, 3, 0, 40]) if draw.random() < 0.3 else 2 for _ in range(n)]
        steps += rollout(
            uid,
            f"g{draw.randrange(14):02d}",
            rewards=[draw.choice([None, 0.0, 0.5, 1.0]) for _ in range(n)],
            at=draw.randrange(50),
            channel="val" if draw.random() < 0.1 else "train",
            policy_version=lambda k, v=versions: v[k],
            call_kind=lambda k, c=kinds: c[k],
            token_source=lambda k, s=sources: s[k],
            response_ids=lambda k, s=sources, m=lengths, d=draw: (
                None if s[k] == "none" else [d.randrange(5) for _ in range(m[k])]
            ),
            parent_step_uid=None,
            n_shared_tokens=0,
            n_shared_messages=0,
        )
        if draw.random() < 0.8:
            completions += done(uid, reward=draw.choice([None, None, 0.25, 1.0]))
        if draw.random() < 0.15:
            labels.append(label("quality", "bad", trajectory_uid=uid))
        if draw.random() < 0.15:
            labels.append(label("quality", draw.choice(["bad", "good"]), step_uid=f"{uid}.0"))
        if draw.random() < 0.1:
            labels.append(label("trainable", draw.random() < 0.5, step_uid=f"{uid}.{n - 1}"))
    opened.steps.append(steps, completions=completions)
    opened.labels.annotate(labels)
    yield opened
    opened.close()


views = st.sampled_from(
    [
        View(),
        View({"token_source": ["engine", "logprobs", "retokenized"]}),
        View(where="step_index < 3 OR reward > 0.2 -- early or good"),
        View({"channel": ["train", "val"]}, "n_response_tokens <> 40"),
        View(where="step_index > 99"),
    ]
)
recipes = st.fixed_dictionaries(
    {"algorithm": st.sampled_from(["grpo", "dr_grpo", "rloo"])},
    optional={
        "n_rollouts": st.integers(1, 4),
        "batch_size": st.integers(1, 9),
        "max_staleness": st.integers(0, 3),
        "token_budget": st.sampled_from([12, 40, 32768]),
        "require_complete": st.booleans(),
        "options": st.sampled_from([{}, {"singleton": "raw"}]),
        "channel": st.sampled_from(["train", "val"]),
        "token_sources": st.just(["engine", "retokenized"]),
    },
)
supervised = st.fixed_dictionaries(
    {"algorithm": st.just("sft")},
    optional={
        "batch_size": st.integers(1, 9),
        "options": st.sampled_from(
            [{}, {"min_reward": None}, {"min_reward": 0.75}, {"best_of": 1}, {"best_of": 2, "min_reward": None}]
        ),
        "token_budget": st.sampled_from([12, 32768]),
    },
)


@given(views, recipes | supervised)
@settings(max_examples=50, deadline=None)
def test_plan_follows_its_rules(varied, view, data):
    if data["algorithm"] != "sft" and "singleton" not in data.get("options", {}):
        data = {**data, "n_rollouts": max(2, data["n_rollouts"])} if "n_rollouts" in data else data
    recipe = parse_recipe({"policy_version": 4, **data})
    made = plan(varied, view, recipe)
    chosen, out = reference.plan(varied, view, recipe)
    assert made.step_uids == [row["step_uid"] for row in chosen]
    assert made.steps["advantage"].to_pylist() == pytest.approx([row["advantage"] for row in chosen], abs=1e-9)
    assert {r.reason: r.n_steps for r in made.excluded} == {reason: len(uids) for reason, uids in out.items()}
    for reason in made.excluded:
        assert uids_of(varied, reason.view) == sorted(out[reason.reason]), reason
    every = reference.candidates(varied, view, recipe.channel)
    for position, name in enumerate(("prompt_uid", "trajectory_uid", "step_uid")):
        left = sum((r.n_groups, r.n_trajectories, r.n_steps)[position] for r in made.excluded)
        assert left + made.remaining[-1][position + 1] == len({row[name] for row in every})
    body = made.to_json()
    flat = [uid for g in body["groups"] for t in g["trajectories"] for uid in t["step_uids"]]
    assert flat == made.step_uids
    assert body["totals"]["n_groups"] == len(body["groups"]) == len({row["prompt_uid"] for row in chosen})
    assert body["totals"]["n_trajectories"] == len({row["trajectory_uid"] for row in chosen})


@given(st.sampled_from([16, 40, 32768]))
@settings(max_examples=3, deadline=None)
def test_layout_holds_every_chosen_step_once(varied, budget):
    made = plan(varied, View(), parse_recipe({**SFT_ALL, "token_budget": budget}))
    layout = made.layout
    assert len(layout.over_budget) == 0
    uids = []
    for index in range(len(layout.rows)):
        row, sequences = layout.row(varied.training, index, pad=True)
        assert len(row.tokens) == budget and row.n_packed == layout.row_tokens[index]
        for local, member in enumerate(row.members.tolist()):
            step = varied.steps.get(sequences.step_uids[member])
            assert row.restore(row.tokens, local).tolist() == [*step["prompt_ids"], *step["response_ids"]]
            uids.append(step["step_uid"])
    assert sorted(uids) == sorted(made.step_uids)
    assert made.totals["n_packed_tokens"] == layout.row_tokens.sum()
    assert made.totals["n_tokens"] == layout.n_tokens == made.lengths.sum()
    if budget == 32768:
        per_group = [
            build(varied.steps.sequences([uid for t in group.trajectories for uid in t.step_uids])).n_packed
            for group in made.groups
        ]
        assert layout.group_packed.tolist() == per_group
    with pytest.raises(NotFound):
        layout.row(varied.training, len(layout.rows))


def two_groups(pool):
    pool.steps.append(
        rollout("a1", "A")
        + rollout("a2", "A", rewards=[None, 0.0], at=5)
        + rollout("b1", "B", at=10)
        + rollout("b2", "B", rewards=[0.0, None, 0.0], at=11),
        completions=done("a1", "a2", "b1", "b2"),
    )


def test_a_bad_label_shrinks_the_plan_by_exactly_it_and_undo_brings_it_back(pool):
    two_groups(pool)
    before = plan(pool, View(), parse_recipe(SFT_ALL))
    action = pool.labels.annotate([label("quality", "bad", trajectory_uid="b2")])
    after = plan(pool, View(), parse_recipe(SFT_ALL))
    assert [uid for uid in before.step_uids if not uid.startswith("b2")] == after.step_uids
    assert reasons(after) == {"labelled_bad": (0, 1, 3)}
    assert before.hash != after.hash
    pool.labels.undo(action)
    again = plan(pool, View(), parse_recipe(SFT_ALL))
    assert (again.hash, again.uid) == (before.hash, before.uid)


def test_a_bad_step_leaves_alone_and_its_trajectory_keeps_its_score(pool):
    two_groups(pool)
    pool.labels.annotate([label("quality", "bad", step_uid="a1.1")])
    made = plan(pool, View(), parse_recipe({}))
    assert reasons(made) == {"labelled_bad": (0, 0, 1)}
    (a1, a2), _ = (group.trajectories for group in made.groups)
    assert a1.step_uids == ["a1.0"] and a1.reward == 1.0
    assert a1.advantage == pytest.approx(0.7071058, abs=1e-7)
    assert a2.advantage == pytest.approx(-0.7071058, abs=1e-7)


def test_unscored_is_not_zero(pool):
    pool.steps.append(
        rollout("a1", "A") + rollout("a2", "A", rewards=[0.0]) + rollout("a3", "A", rewards=[None, None]),
        completions=done("a1", "a2", "a3"),
    )
    made = plan(pool, View(), parse_recipe({"algorithm": "dr_grpo"}))
    assert reasons(made) == {"unscored": (0, 1, 2)}
    assert [t.advantage for t in made.groups[0].trajectories] == [0.5, -0.5]
    assert len(plan(pool, View(), parse_recipe(SFT_ALL)).step_uids) == 5


def test_staleness_counts_from_the_newest_version_in_force(pool):
    for i, version in enumerate((1, 3, 5)):
        pool.steps.append(
            rollout(f"t{i}", "A", at=i, policy_version=version, rewards=[float(i)]), completions=done(f"t{i}")
        )
    fresh = parse_recipe({**SFT_ALL, "max_staleness": 2})
    seen = plan(pool, View(), fresh)
    assert seen.policy_version == 5 and reasons(seen) == {"stale": (0, 1, 1)}
    pool.steps.append([], policy_events=[PolicyEvent(6, "registered", T0), PolicyEvent(7, "sync_started", T0 + 1)])
    reported = plan(pool, View(), fresh)
    assert reported.policy_version == 6 and reported.step_uids == ["t2.0"]
    planned = plan(
        pool,
        View(),
        parse_recipe({**SFT_ALL, "max_staleness": 2, "policy_version": 9}),
    )
    assert planned.step_uids == [] and planned.totals["token_ratio"] is None
    assert plan(pool, View(), parse_recipe(SFT_ALL)).policy_version is None


def test_an_empty_pool_gives_an_empty_plan(pool):
    made = plan(pool, View(), parse_recipe(None))
    assert made.to_json()["totals"] == {
        "n_groups": 0,
        "n_trajectories": 0,
        "n_steps": 0,
        "n_tokens": 0,
        "n_loss_tokens": 0,
        "n_packed_tokens": 0,
        "token_ratio": None,
    }
    assert made.to_json()["groups"] == [] and made.excluded == []


def test_equal_state_gives_an_equal_hash_and_reopening_changes_nothing(pool, tmp_path):
    two_groups(pool)
    recipe = parse_recipe({"options": {"ddof": 1}})
    first = plan(pool, View(), parse_recipe({}))
    assert plan(pool, View(), recipe).hash == first.hash, "a default that is spelled out is the same recipe"
    pool.labels.annotate([label("note", "looked at it", step_uid="a1.0")])
    assert plan(pool, View(), recipe).hash == first.hash, "a note does not change what is trained"
    pool.labels.annotate([label("reward", 0.75, trajectory_uid="a1")])
    assert plan(pool, View(), recipe).hash != first.hash
    assert plan(pool, View({"agent": None}), recipe).hash != first.hash
    other = Pool.open(tmp_path / "other.duckdb", memory="256MB", threads=1)
    two_groups(other)
    assert plan(other, View(), recipe).hash == first.hash
    other.close()


def test_wrong_views_name_the_field(pool):
    with pytest.raises(InvalidInput) as caught:
        plan(pool, View({"colour": "red"}), parse_recipe({}))
    assert caught.value.field == "filters.colour"


class Rows:
    """A table of candidate rows, in place of a pool that would take minutes to fill."""

    versions = None

    def __init__(self, table):
        self.table, self.training = table, self

    def plan_rows(self, view, *, channel):
        return self.table

    def version_in_force(self, channel):
        return 4

    def facts_hashes(self, step_ids):
        return pa.array(step_ids).cast(pa.string())

    def sequences(self, step_uids):
        raise AssertionError("a plan reads no token before its layout is asked for")


def test_a_quarter_million_steps_plan_fast():
    n, per_trajectory, per_group = 250_000, 25, 8
    i = np.arange(n)
    t = i // per_trajectory
    table = pa.table(
        {
            "step_id": pa.array(i),
            "step_uid": pa.array([f"s{k}" for k in i]),
            "trajectory_uid": pa.array([f"t{k}" for k in t]),
            "prompt_uid": pa.array([f"g{k}" for k in t // per_group]),
            "step_index": pa.array((i % per_trajectory).astype(np.int32)),
            "token_source": pa.array(np.full(n, "engine", dtype=object)),
            "n_prompt_tokens": pa.array(np.full(n, 1000, dtype=np.int32)),
            "n_response_tokens": pa.array(np.full(n, 100, dtype=np.int32)),
            "policy_version": pa.array(t % 5),
            "reward": pa.nulls(n, pa.float64()),
            "quality": pa.nulls(n, pa.string()),
            "trainable": pa.array(i % 7 != 0),
            "trajectory_reward": pa.array((t % 3).astype(np.float64)),
            "trajectory_quality": pa.nulls(n, pa.string()),
            "complete": pa.array(np.ones(n, dtype=bool)),
        }
    )
    started = time.process_time()
    made = plan(Rows(table), View(), parse_recipe({"max_staleness": 3, "batch_size": 900}))
    took = time.process_time() - started
    assert made.n_groups == 900
    assert took < 3.0
