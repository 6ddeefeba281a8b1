"""Export, import, plan again: the same rows, for every format that can be both.

The second pool is filled by the import through journal and ingest, as the service fills one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.api.wire import StepIn, check
from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export import export
from core.imports import run
from core.pool import Pool
from core.records import complete_record, steps_record
from core.types import View
from tests.batch.keeping_all import keeping_all
from tests.effort import settings
from tests.ingest.recorded import Bench

from .conftest import conversation, done
from .uneven_pool import HARD, fill

AT = 1e9


def opened(folder: Path) -> Pool:
    return Pool.open(folder / "a.duckdb", memory="256MB", threads=1, clock=lambda: AT + 1000)


class Direct:
    """An import's sink without HTTP between: the wire's check, the journal, the ingest."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def known(self, step_uids: Sequence[str]) -> set[str]:
        return set(self.bench.pool.steps.existing(list(step_uids)))

    def submit(self, steps: Iterable[Mapping[str, Any]]) -> int:
        wire = [check(StepIn, step).wire(now=AT, channel="train") for step in steps]
        self.bench.feed(steps_record(at=AT, steps=wire))
        return len(wire)

    def complete(self, trajectory_uid: str, *, reward: float | None = None, outcome: str | None = None) -> None:
        self.bench.feed(complete_record(at=AT, trajectory_uid=trajectory_uid, reward=reward, outcome=outcome))


def read_again(path: Path, folder: Path) -> Bench:
    """A pool of what a file holds."""
    bench = Bench(folder)
    report = run([path], Direct(bench))
    assert report.problems == []
    return bench


def rows_of(made: Plan, pool: Pool, *, merge: bool) -> list[Any]:
    """Groups of trajectories of rows, all sorted: what is trained, whatever it is called."""
    groups: dict[int, dict[int, list[Any]]] = {}
    for rows in training_rows(made, pool.training, merge=merge):
        for i, at in enumerate(rows.slices()):
            loss = rows.loss[at]
            scores = rows.logprobs[at][loss].tolist(), rows.advantages[at][loss].round(5).tolist()
            row = rows.ids[at].tolist(), loss.tolist(), *(["unknown" if x != x else x for x in one] for one in scores)
            of_group = groups.setdefault(int(rows.group[i]), {})
            of_group.setdefault(int(rows.trajectory[i]), []).append(row)
    return sorted(sorted(sorted(rows) for rows in group.values()) for group in groups.values())


def made_of(pool: Pool, algorithm: str, **recipe: Any) -> Plan:
    return plan(pool, View(), parse_recipe({**keeping_all(algorithm), **recipe}))


TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "new": st.integers(1, 3),
            "sampled": st.integers(1, 4),
            "kind": st.sampled_from(["main", "main", "main", "retry"]),
            "masked": st.booleans(),
            "reward": st.sampled_from([None, None, 0.5]),
            "restart": st.booleans(),
        }
    ),
    min_size=1,
    max_size=4,
)
ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([-1.0, 0.0, 0.25, 1.0]), TURNS), min_size=1, max_size=6
)


def filled(pool: Pool, attempts: Sequence[tuple[int, float, Sequence[Mapping[str, Any]]]], *, masks: bool) -> None:
    """Trajectories with retries, masked tokens, restarted contexts and step rewards; every new token is its own."""
    fresh = count(1000)
    for number, (group, reward, turns) in enumerate(attempts):
        uid = f"t{number}"
        steps, context, messages_so_far = [], [], []
        for k, turn in enumerate(turns):
            if turn["restart"] and k:
                context, messages_so_far = [], []
            n, task = turn["sampled"], {"role": "user", "content": f"task {group}"}
            new = [100 * (group + 1)] if not context else []
            prompt = [*context, *new, *(next(fresh) for _ in range(turn["new"]))]
            sampled = [next(fresh) for _ in range(n)]
            answer = {"role": "assistant", "content": f"{uid} says {k}"}
            messages = (
                [*messages_so_far, task]
                if not messages_so_far
                else [*messages_so_far, {"role": "user", "content": f"result {k}"}]
            )
            (step,) = conversation(
                uid, f"p{group}", [(prompt, sampled)],
                step_uid=f"{uid}.{k}", step_index=k, call_kind=turn["kind"], reward=turn["reward"],
                response_mask=[int(i > 0) for i in range(n)] if masks and turn["masked"] and n > 1 else None,
                messages=messages, response_message=answer, created_at=AT + 10 * number + k,
                is_last=k == len(turns) - 1, policy_version=3 + k,
            )  # fmt: skip
            steps.append(step)
            context, messages_so_far = [*prompt, *sampled], [*messages, answer]
        pool.steps.append(steps, completions=done(uid, reward=reward))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attempts=ATTEMPTS, algorithm=st.sampled_from(["sft", "rloo", "grpo"]))
def test_steps_parquet_brings_every_row_back(attempts: Any, algorithm: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("trip")
    with closing(opened(folder)) as pool:
        filled(pool, attempts, masks=True)
        made = made_of(pool, algorithm)
        if not len(made.steps):
            return
        result = export(made, pool, "steps_parquet", folder)
        wanted = [rows_of(made, pool, merge=merge) for merge in (False, True)]
    bench = read_again(result.path, folder)
    again = made_of(bench.pool, algorithm)
    assert [rows_of(again, bench.pool, merge=merge) for merge in (False, True)] == wanted
    bench.close()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attempts=ATTEMPTS, merge=st.sampled_from(["step", "trajectory"]))
def test_slime_samples_come_back_as_the_trajectories_they_were(
    attempts: Any, merge: str, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("trip")
    with closing(opened(folder)) as pool:
        filled(pool, attempts, masks=True)
        made = made_of(pool, "sft")
        if not len(made.steps):
            return
        result = export(made, pool, "slime", folder, merge=merge, credit="trainer")
        wanted = rows_of(made, pool, merge=True)
        rewards = sorted(made.trajectories["reward"].to_pylist())
    bench = read_again(result.path, folder)
    again = made_of(bench.pool, "sft")
    assert rows_of(again, bench.pool, merge=True) == wanted
    assert sorted(again.trajectories["reward"].to_pylist()) == rewards
    bench.close()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attempts=ATTEMPTS)
def test_conversations_come_back_as_lines_of_the_same_weights(attempts: Any, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("trip")
    with closing(opened(folder)) as pool:
        filled(pool, attempts, masks=False)
        made = made_of(pool, "sft")
        if not len(made.steps):
            return
        result = export(made, pool, "openai_messages", folder)
        wanted = sorted(result.path.read_text().splitlines())
    bench = read_again(result.path, folder)
    again = made_of(bench.pool, "sft", token_sources=["engine", "none"])
    assert again.counts["n_tokens"] == 0
    text = export(again, bench.pool, "openai_messages", folder / "b").path.read_text()
    assert sorted(text.splitlines()) == wanted
    bench.close()


@pytest.mark.parametrize("name", ["steps_parquet", "slime"])
def test_the_uneven_pool_comes_back(pool: Pool, tmp_path: Path, name: str) -> None:
    # slime's samples hold no row without a prompt: its first token is context there, and the manifest says so.
    fill(pool, HARD.keys() - {"truncated", "singleton", *(["empty_prompt"] if name != "slime" else [])})
    made = made_of(pool, "rloo")
    bench = read_again(export(made, pool, name, tmp_path).path, tmp_path / "again")
    again = made_of(bench.pool, "rloo")
    assert again.counts == made.counts
    assert rows_of(again, bench.pool, merge=True) == rows_of(made, pool, merge=True)
    bench.close()


def test_texts_alone_are_exported_as_texts_and_as_nothing_else(tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a"}]} for i in (1, 2)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\ufeff" + "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    bench = read_again(path, tmp_path / "again")
    with pytest.raises(InvalidInput) as refused:
        export(made_of(bench.pool, "sft"), bench.pool, "openai_messages", tmp_path)
    assert "2 steps: No token ids" in str(refused.value.hint)
    assert "token_sources" in str(refused.value.hint)
    made = made_of(bench.pool, "sft", token_sources=["none"])
    assert made.totals["n_steps"] == 2
    for name in ("openai_messages", "llama_factory", "steps_parquet"):
        assert export(made, bench.pool, name, tmp_path).n_rows == 2
    with pytest.raises(InvalidInput, match="2 steps have no token ids"):
        export(made, bench.pool, "trl_sft", tmp_path)
    with pytest.raises(InvalidInput, match="grpo needs token ids"):
        parse_recipe({"algorithm": "grpo", "token_sources": ["none"]})
    bench.close()
