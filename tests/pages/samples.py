"""Sample steps with tool calls, sibling groups and shared prefixes, in the shipped tokenizer."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from core.serving.tokenizer import ChatTokenizer, load_tokenizer, tokenizer_hash
from core.types import Step

START = 1_790_000_000.0
TASKS = (
    "Sum the column 'amount' in data/sales.csv and write the total to total.txt.",
    "Rename every .txt file in notes/ so that its name is lower case, then list them.",
    "Read config.json, set debug to false, keep the other keys and write it back.",
    "Find the longest line in log.txt and write it, without trailing blanks, to longest.txt.",
)
SYSTEM = "You are a careful agent in a small workspace. Use one tool at a time. Look before you write."
REWARDS = (1.0, 0.0, 1.0, 0.5)


def tool(name: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [tool("list_files", "path"), tool("read_file", "path"), tool("write_file", "path", "content")]


def answer(turn: int, last: bool, chance: random.Random) -> dict[str, Any]:
    """The assistant's message of one turn."""
    if last:
        return {
            "role": "assistant",
            "content": chance.choice(["Done: the file is written.", "Finished, and read back."]),
        }
    name = ("list_files", "read_file", "write_file")[turn % 3]
    arguments = {
        "list_files": '{"path": "."}',
        "read_file": f'{{"path": "data/{chance.choice("abc")}.csv"}}',
        "write_file": f'{{"path": "out.txt", "content": "total: {chance.randint(0, 99)}\\n"}}',
    }[name]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": chance.choice(["", "Let me look first."]),
        "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    if chance.random() < 0.5:
        message["reasoning_content"] = "First see what is there, then decide."
    return message


def sampled_ids(tokenizer: ChatTokenizer, messages: list[Any], message: Any) -> tuple[list[int], list[int]]:
    """Prompt and response ids of a turn: the rendered conversation, cut where the answer begins."""
    prompt = tokenizer.encode(tokenizer.render(messages, TOOLS))
    whole = tokenizer.encode(tokenizer.render([*messages, message], TOOLS, add_generation_prompt=False))
    assert whole[: len(prompt)] == prompt
    return prompt, whole[len(prompt) :]


@cache
def agent_steps(n_groups: int = 3, n_rollouts: int = 4, seed: int = 0) -> tuple[list[Step], list[dict[str, Any]]]:
    """Steps of ``n_groups`` × ``n_rollouts`` trajectories, and their completions with rewards 1, 0, 1, 0.5.

    Made once for all tests, which don't write into it.
    """
    chance = random.Random(seed)
    tokenizer, hashed = load_tokenizer(), tokenizer_hash()
    steps: list[Step] = []
    completions: list[dict[str, Any]] = []
    at = START
    for group in range(n_groups):
        for rollout in range(n_rollouts):
            trajectory = f"traj-{group}-{rollout}"
            messages: list[Any] = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": TASKS[group % len(TASKS)]},
            ]
            parent: Step | None = None
            n_turns = chance.choice((3, 4, 5))
            for turn in range(n_turns):
                message = answer(turn, turn == n_turns - 1, chance)
                prompt, response = sampled_ids(tokenizer, messages, message)
                known = [*parent.prompt_ids, *parent.response_ids] if parent else []
                shared = next(
                    (i for i, pair in enumerate(zip(known, prompt, strict=False)) if pair[0] != pair[1]), None
                )
                shared = min(len(known), len(prompt)) if shared is None else shared
                at += chance.uniform(0.5, 3)
                step = Step(
                    step_uid=f"{trajectory}-s{turn}",
                    trajectory_uid=trajectory,
                    prompt_uid=f"prompt-{group}",
                    step_index=turn,
                    created_at=at,
                    agent=("demo-agent", "opencode")[group % 2],
                    model="qwen3-tiny",
                    engine="local",
                    identity_source="path",
                    transition="extends" if parent else None,
                    token_source="engine",
                    prompt_ids=prompt,
                    response_ids=response,
                    response_logprobs=[-chance.expovariate(2) for _ in response],
                    messages=[dict(m) for m in messages],
                    response_message=message,
                    tools=TOOLS,
                    finish_reason="tool_calls" if "tool_calls" in message else "stop",
                    policy_version=3 + group,
                    policy_version_end=3 + group,
                    parent_step_uid=parent.step_uid if parent else None,
                    n_shared_tokens=shared if parent else 0,
                    n_shared_messages=len(parent.messages) + 1 if parent else 0,
                    latency_s=chance.uniform(0.2, 3),
                    sampling={"temperature": 1.0},
                    tokenizer_hash=hashed,
                )
                steps.append(step)
                messages = [*messages, message]
                messages += [
                    {"role": "tool", "tool_call_id": call["id"], "content": "amount,region\n12,N\n30,S\n"}
                    for call in message.get("tool_calls", [])
                ]
                parent = step
            completions.append(
                {
                    "trajectory_uid": trajectory,
                    "prompt_uid": f"prompt-{group}",
                    "channel": "train",
                    "reward": REWARDS[rollout % len(REWARDS)],
                    "outcome": "done",
                    "at": at,
                }
            )
    return steps, completions


def title_step() -> Step:
    """An auxiliary call of the first trajectory: never trained on."""
    tokenizer = load_tokenizer()
    response = tokenizer.encode("Sum of sales<|im_end|>")
    return Step(
        step_uid="traj-0-0-title",
        trajectory_uid="traj-0-0",
        prompt_uid="prompt-0",
        step_index=9,
        created_at=START,
        agent="demo-agent",
        model="qwen3-tiny",
        call_kind="auxiliary",
        token_source="engine",
        prompt_ids=tokenizer.encode("A title for this task"),
        response_ids=response,
        response_logprobs=[-0.1] * len(response),
        messages=[{"role": "user", "content": "A title for this task"}],
        response_message={"role": "assistant", "content": "Sum of sales"},
        finish_reason="stop",
    )


def long_step(n_tokens: int = 32_000) -> Step:
    """One step with a context of ``n_tokens``."""
    tokenizer = load_tokenizer()
    text = "The quick brown fox reads config.json, then writes 42 lines.\n\tdef f(x):\n\t\treturn x + 1\n"
    prompt = tokenizer.encode(text * (n_tokens // 20))[:n_tokens]
    assert len(prompt) == n_tokens
    response = tokenizer.encode("A long answer follows. " * 200)[:900]
    return Step(
        step_uid="long-step",
        trajectory_uid="traj-long",
        prompt_uid="prompt-long",
        step_index=0,
        created_at=START - 100,
        agent="opencode",
        model="qwen3-tiny",
        identity_source="key",
        token_source="engine",
        prompt_ids=prompt,
        response_ids=response,
        response_logprobs=[-0.5] * len(response),
        messages=[{"role": "user", "content": "long"}],
        response_message={"role": "assistant", "content": tokenizer.decode(response)},
        finish_reason="length",
        policy_version=5,
        tokenizer_hash=tokenizer_hash(),
    )
