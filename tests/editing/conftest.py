"""A pool with a conversation that an engine with the shipped tokenizer could have had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config import Settings
from core.pool import Pool
from core.serving.tokenizer import load_tokenizer
from core.types import Step

T0 = 1_700_000_000.0
TOKENIZER = load_tokenizer()
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"path": {}}}}}
    for name in ("read", "write")
]


def call(name: str, arguments: str) -> dict[str, Any]:
    """A tool call of a chat message."""
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def rollout(uid: str, group: str, answer: str, **fields: Any) -> list[Step]:
    """Two steps: a call of ``read``, and an answer in words. Ids are those of the chat template."""
    task = [{"role": "user", "content": f"What does notes.txt of {group} say?"}]
    first = {"role": "assistant", "content": "", "tool_calls": [call("read", '{"path": "note.txt"}')]}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "no such file – é"}
    steps: list[Step] = []
    for k, (messages, said) in enumerate(
        ((task, first), ([*task, first, result], {"role": "assistant", "content": answer}))
    ):
        prompt = TOKENIZER.encode(TOKENIZER.render(messages, TOOLS))
        whole = TOKENIZER.render([*messages, said], TOOLS, add_generation_prompt=False)
        response = TOKENIZER.encode(whole[len(TOKENIZER.render(messages, TOOLS)) :].removesuffix("\n"))
        shared = len(steps[-1].prompt_ids) + len(steps[-1].response_ids) if steps else 0  # type: ignore[arg-type]
        values: dict[str, Any] = {
            "step_uid": f"{uid}.{k}", "trajectory_uid": uid, "prompt_uid": group, "step_index": k, "created_at": T0 + k,
            "token_source": "engine", "prompt_ids": prompt, "response_ids": response,
            "response_logprobs": [-0.5] * len(response), "messages": messages, "response_message": said, "tools": TOOLS,
            "transition": "extends" if k else None, "parent_step_uid": f"{uid}.0" if k else None,
            "n_shared_tokens": shared, "n_shared_messages": 2 if k else 0, "policy_version": 1, "finish_reason": "stop",
            "tokenizer_hash": TOKENIZER.hash,
        }  # fmt: skip
        steps.append(Step(**{**values, **fields}))
        if len(steps) == 2:
            assert steps[1].prompt_ids[:shared] == [*steps[0].prompt_ids, *steps[0].response_ids]  # type: ignore[index]
    return steps


def done(*uids: str, reward: float | None) -> list[dict[str, Any]]:
    """``complete`` records."""
    return [{"kind": "complete", "trajectory_uid": uid, "reward": reward} for uid in uids]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """One success and one failure of a task, and one failure of another."""
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    opened.steps.append(
        rollout("good", "A", "It says hello.") + rollout("bad", "A", "I don't know.") + rollout("sad", "B", "Nothing."),
        completions=[*done("good", reward=1.0), *done("bad", "sad", reward=0.0)],
    )
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")
