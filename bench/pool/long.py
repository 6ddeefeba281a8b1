"""Adds one long trajectory, and a dataset version of all steps, to a pool of ``enrich.py``: for pages that show them.

The trajectory is the pool's newest. Each turn is an answer with a tool call, and the tool's result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.pool.generate import START, VOCABULARY
from core.batch.datasets import freeze_version
from core.batch.recipe import Recipe
from core.pool import Pool
from core.types import Step, View

LONG = "long"
"""The name of the trajectory."""
VERSION = "everything"
"""The name of the dataset version."""
TASK_TOKENS, RESPONSE_TOKENS, NEW_TOKENS = 2000, 40, 20
WORDS = 60
AT_ONCE = 100


def turns(n: int, rng: np.random.Generator) -> Iterator[Step]:
    """The steps of a trajectory of ``n`` turns, whose context grows to 60 tokens for each."""
    words = np.array(["alpha", "beta", "gamma", "delta", "open", "close", "read", "write", "error", "done"])
    messages: list[dict[str, Any]] = [{"role": "user", "content": " ".join(rng.choice(words, 400))}]
    ids = rng.integers(0, VOCABULARY, TASK_TOKENS + n * (RESPONSE_TOKENS + NEW_TOKENS), dtype=np.int32)
    end = TASK_TOKENS
    for k in range(n):
        call = {"name": "bash", "arguments": f'{{"command": "{" ".join(rng.choice(words, 6))}"}}'}
        answer = {
            "role": "assistant",
            "content": " ".join(rng.choice(words, WORDS)),
            "tool_calls": [{"id": f"call_{k}", "type": "function", "function": call}],
        }
        yield Step(
            step_uid=f"{LONG}.{k}",
            trajectory_uid=LONG,
            prompt_uid=LONG,
            step_index=k,
            created_at=START + 10_000_000 + k,
            agent="coder",
            model="policy-8b",
            engine="vllm",
            transition="extends" if k else None,
            token_source="engine",
            prompt_ids=ids[:end],
            response_ids=ids[end : end + RESPONSE_TOKENS],
            response_logprobs=-rng.random(RESPONSE_TOKENS, dtype=np.float32),
            messages=list(messages),
            response_message=answer,
            sampling={"temperature": 1.0},
            finish_reason="tool_calls",
            latency_s=1.0,
            policy_version=19,
            parent_step_uid=f"{LONG}.{k - 1}" if k else None,
            n_shared_tokens=end - NEW_TOKENS if k else 0,
            n_shared_messages=len(messages) - 1 if k else 0,
            is_last=k == n - 1,
        )
        messages += [
            answer,
            {"role": "tool", "tool_call_id": f"call_{k}", "content": " ".join(rng.choice(words, WORDS))},
        ]
        end += RESPONSE_TOKENS + NEW_TOKENS


def add_long(pool: Pool, n_turns: int = 2000, seed: int = 0) -> None:
    """Store the trajectory, complete and scored."""
    pending: list[Step] = []
    for step in turns(n_turns, np.random.default_rng(seed)):
        pending.append(step)
        if len(pending) == AT_ONCE:
            pool.steps.append(pending)
            pending.clear()
    pool.steps.append(pending, completions=[{"kind": "complete", "trajectory_uid": LONG, "reward": 1.0}])


def freeze_all(pool: Pool) -> None:
    """Freeze all steps of the channel ``train``."""
    freeze_version(pool, VERSION, View(), Recipe(), author="bench")
