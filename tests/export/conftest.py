"""A real pool with trajectories whose ids the shipped tokenizer knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.pool import Pool
from core.types import Step

T0 = 1_700_000_000.0


def conversation(trajectory_uid: str, prompt_uid: str, turns: list[tuple[list[int], list[int]]], **fields: Any):
    """Steps of a conversation; each turn is (new context ids, sampled ids)."""
    steps: list[Step] = []
    context: list[int] = []
    for k, (new, sampled) in enumerate(turns):
        prompt = [*context, *new]
        own = {name: value(k) if callable(value) else value for name, value in fields.items()}
        values = {
            "step_uid": f"{trajectory_uid}.{k}",
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "step_index": k,
            "created_at": T0 + k,
            "token_source": "engine",
            "prompt_ids": prompt,
            "response_ids": sampled,
            "response_logprobs": [-0.125 * (i + 1) for i in range(len(sampled))],
            "messages": [{"role": "user", "content": f"turn {k} – é"}],
            "response_message": {"role": "assistant", "content": "ok"},
            "tools": [{"type": "function", "function": {"name": "read"}}],
            "parent_step_uid": steps[-1].step_uid if k else None,
            "n_shared_tokens": len(context),
            "transition": "extends" if k else None,
            "tokenizer_hash": "tok-1",
            "policy_version": 2,
            "sampling": {"temperature": 1.0},
            "metadata": {"turn": k},
        }
        steps.append(Step(**{**values, **own}))
        context = [*prompt, *sampled]
    return steps


def done(*trajectory_uids: str, reward: float | None = None) -> list[dict[str, Any]]:
    """``complete`` records."""
    return [{"kind": "complete", "trajectory_uid": uid, "reward": reward} for uid in trajectory_uids]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    yield opened
    opened.close()
