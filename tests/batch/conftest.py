"""A real pool, and steps that look like an agent's: each prompt extends the step before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.pool import Pool
from core.types import Step

T0 = 1_700_000_000.0


def rollout(
    trajectory_uid: str,
    prompt_uid: str,
    *,
    rewards: list[float | None] = [None, 1.0],  # noqa: B006 - read only
    at: float = 0.0,
    first_prompt: tuple[int, ...] = (1, 2, 3),
    response: Callable[[int], list[int]] = lambda k: [10 + k, 20 + k],
    **fields: Any,
) -> list[Step]:
    """Steps of one trajectory; ``fields`` may hold a callable of the step index per field."""
    steps: list[Step] = []
    prompt, messages = list(first_prompt), [{"role": "user", "content": f"task {prompt_uid}"}]
    for k, reward in enumerate(rewards):
        own = {name: value(k) if callable(value) else value for name, value in fields.items()}
        ids = own.pop("response_ids", response(k))
        answer = {"role": "assistant", "content": f"answer {k}"}
        values: dict[str, Any] = {
            "step_uid": f"{trajectory_uid}.{k}",
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "step_index": k,
            "created_at": T0 + at + k,
            "token_source": "engine",
            "prompt_ids": list(prompt),
            "response_ids": ids,
            "response_logprobs": None if ids is None else [-0.5 - 0.25 * i for i in range(len(ids))],
            "messages": list(messages),
            "response_message": answer,
            "tools": [{"type": "function", "function": {"name": "read"}}],
            "reward": reward,
            "policy_version": 3,
            "transition": "extends" if k else None,
            "parent_step_uid": steps[-1].step_uid if k else None,
            "n_shared_tokens": len(steps[-1].prompt_ids) + len(steps[-1].response_ids) if k and ids else 0,
            "n_shared_messages": len(messages) - 1 if k else 0,
            "tokenizer_hash": "tok-1",
            "metadata": {"k": k},
        }
        steps.append(Step(**{**values, **own}))
        prompt += [*(ids or []), 90 + k]
        messages += [answer, {"role": "tool", "content": f"result {k}"}]
    return steps


def done(*trajectory_uids: str, reward: float | None = None) -> list[dict[str, Any]]:
    """``complete`` records."""
    return [{"kind": "complete", "trajectory_uid": uid, "reward": reward} for uid in trajectory_uids]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    yield opened
    opened.close()
