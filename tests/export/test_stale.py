"""A finished file is never taken for another: whatever reaches a row changes the file's name or is the same bytes.

The judge is a second folder: what an export writes there, where nothing was written before, is what it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.export import EXPORTERS, export
from core.pool import Pool
from core.types import Annotation, Step, View

from .uneven_pool import T0, attempts, uneven_steps

WITHOUT = ("no_logprobs", "no_version", "no_temperature", "greedy", "empty_prompt", "unscored", "singleton")
CHANGED = "m7.b.0"
"""The step that is changed."""


def other(step: Step) -> dict[str, Any]:
    """Another value for each field of a step that may be different in another pool."""
    sampled = list(step.response_ids or ())
    return {
        "step_index": 3,
        "prompt_uid": "math:8",
        "agent": "another",
        "model": "another",
        "token_source": "whitebox",
        "source": "whitebox",
        "prompt_ids": [399, *list(step.prompt_ids or ())[1:]],
        "response_ids": [399, *sampled[1:]],
        "response_logprobs": [-9.0] * len(sampled),
        "messages": [{"role": "user", "content": "something else"}],
        "response_message": {"role": "assistant", "content": "another answer"},
        "tools": [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}],
        "finish_reason": "length",
        "reward": -2.5,
        "policy_version": 1,
        "policy_version_end": 9,
        "is_last": not step.is_last,
        "sampling": {"temperature": 0.3},
        "tokenizer_hash": "tok-2",
        "transition": "compacted",
        "call_kind": "subagent",
        "metadata": {"value": 1.0, "note": "new"},
        "response_mask": [int(i > 0) for i in range(len(sampled))],
        "channel": "val",
        "created_at": step.created_at + 7,
        "parent_step_uid": "m7.d.0",
        "trajectory_uid": "m7.other",
        "step_uid": "m7.other.0",
        "status": "error",
        "mismatch": "3 token ids, but usage says 4",
    }


TOLD_ONLY = {
    "engine": "another",
    "dialect": "messages",
    "identity_source": "header",
    "error": "it broke",
    "latency_s": 9.0,
    "response_id": "chatcmpl-2",
    "stream_mode": "relay",
    "journal_segment": "segment-2",
    "journal_offset": 12,
}
"""What a step says of its call, all of it changed at once: it reaches no row, or else the name."""
LINKS = {"n_shared_tokens", "n_shared_messages"}
"""How a prompt is stored; the prompt itself is among the fields."""


LABELS: dict[str, Callable[[Pool], Any]] = {
    name: lambda pool, target=target, kind=kind, value=value: pool.labels.annotate(
        [Annotation(kind, value, "me", "human", T0 + 9999, **target)]
    )
    for name, target, kind, value in (
        ("label: step reward", {"step_uid": CHANGED}, "reward", 0.125),
        ("label: trajectory reward", {"trajectory_uid": "m7.b"}, "reward", 0.125),
        ("label: not trainable", {"step_uid": "m7.a.3"}, "trainable", False),
        ("label: bad", {"step_uid": "m7.a.3"}, "quality", "bad"),
        ("label: an excluded step's reward", {"step_uid": "m7.a.1"}, "reward", 3.0),
    )
}


def pool_of(path: Path, steps: list[Step]) -> Pool:
    pool = Pool.open(path, memory="512MB", threads=1, clock=lambda: T0 + 10_000)
    ends = [{"kind": "complete", "trajectory_uid": one.uid, "reward": one.reward} for one in attempts(WITHOUT)]
    pool.steps.append(steps, completions=ends)
    return pool


def plan_of(pool: Pool, name: str) -> Plan:
    algorithm = {"trl_dpo": "dpo", "trl_kto": "kto"}.get(name, "turn_discount")
    return plan(pool, View(), parse_recipe({"algorithm": algorithm}))


def write(pool: Pool, name: str, out: Path) -> tuple[str, bytes] | None:
    """File name and bytes; None where the format refuses what it is given."""
    try:
        result = export(plan_of(pool, name), pool, name, out)
    except InvalidInput:
        return None
    return result.path.name, result.path.read_bytes()


@dataclass
class First:
    """Every format's file of the pool as it was, and the hash of its plan."""

    out: Path
    files: dict[str, tuple[str, bytes] | None]
    hashes: dict[str, str]


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> First:
    folder = tmp_path_factory.mktemp("first")
    pool = pool_of(folder / "pool.duckdb", uneven_steps(WITHOUT))
    results = {name: write(pool, name, folder / "out") for name in EXPORTERS}
    hashes = {name: plan_of(pool, name).hash for name in EXPORTERS}
    pool.close()
    assert sum(one is not None for one in results.values()) >= len(EXPORTERS) - 2
    return First(folder / "out", results, hashes)


def test_no_field_of_a_step_is_forgotten():
    assert {one.name for one in fields(Step)} == {*other(uneven_steps(WITHOUT)[0]), *TOLD_ONLY, *LINKS}


@pytest.mark.parametrize("field", [*other(uneven_steps(WITHOUT)[0]), "told only", *LABELS])
def test_whatever_reaches_a_row_changes_the_name_or_nothing(first, tmp_path, field):
    steps = uneven_steps(WITHOUT)
    if field not in LABELS:
        steps = [
            replace(one, **(TOLD_ONLY if field == "told only" else {field: other(one)[field]}))
            if one.step_uid == CHANGED
            else one
            for one in steps
        ]
    pool = pool_of(tmp_path / "pool.duckdb", steps)
    if field in LABELS:
        LABELS[field](pool)
    try:
        hashes = {of: plan_of(pool, of).hash for of in ("trl_dpo", "trl_kto", "steps_parquet")}
        for name in EXPORTERS:
            if hashes.get(name, hashes["steps_parquet"]) != first.hashes[name]:
                continue  # another name: nothing can be taken for it
            fresh = write(pool, name, tmp_path / "fresh")
            assert fresh == first.files[name], f"{name}: a stale file would be taken for this one"
    finally:
        pool.close()


def test_a_changed_reward_is_written_beside_the_file_of_the_old_one(first, tmp_path):
    """The defect as it was seen: a step's reward changes, the finished file is taken, and the old one is trained on."""
    pool = pool_of(tmp_path / "pool.duckdb", uneven_steps(WITHOUT))
    LABELS["label: step reward"](pool)
    for name in ("steps_parquet", "rllm"):
        again, fresh = write(pool, name, first.out), write(pool, name, tmp_path / "fresh")
        assert again == fresh and again != first.files[name]
    pool.close()
