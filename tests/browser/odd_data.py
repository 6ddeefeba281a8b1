"""Steps that few agents make: many tools, hidden characters, an answer in several scripts."""

from __future__ import annotations

from typing import Any

from core.serving.tokenizer import load_tokenizer

SPELLED = "سلام 世界 👋"
HIDDEN = "pay \u202eevil\u202c and\u200b hidden 👩\u200d👧"


def odd_steps() -> list[dict[str, Any]]:
    """A trajectory of four steps with many tools and hidden characters, and an answer in several scripts."""
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "description": "d"}} for n in range(60)]
    steps: list[dict[str, Any]] = [
        {
            "trajectory_uid": "odd-1",
            "prompt_uid": "odd",
            "step_index": index,
            "channel": "odd",
            "prompt_ids": [1, 2, 3 + index],
            "response_ids": [4, 5],
            "response_logprobs": [-0.1, -0.2],
            "messages": [{"role": "user", "content": HIDDEN}],
            "tools": tools,
            "response_message": {"role": "assistant", "content": f"answer {index}" + " needle" * (index == 2)},
            "is_last": index == 3,
        }
        for index in range(4)
    ]
    ids = load_tokenizer().encode(SPELLED)
    steps.append(
        {
            "trajectory_uid": "odd-2",
            "prompt_uid": "odd",
            "step_index": 0,
            "channel": "odd",
            "prompt_ids": [1, 2],
            "response_ids": ids,
            "response_logprobs": [-0.1] * len(ids),
            "messages": [{"role": "user", "content": "hi"}],
            "response_message": {"role": "assistant", "content": SPELLED},
            "is_last": True,
        }
    )
    return steps
