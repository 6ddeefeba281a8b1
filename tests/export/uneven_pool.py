"""A pool that is hard on trainers: what each format's real trainer is tested on.

Groups of four, three, two, two and one; trajectories of one to four steps; rows that merge, that a compaction breaks
and that a fork breaks; policy versions and temperatures that change within a trajectory and within a merged row; two
flat rewards; two prompt groups whose names differ after a colon only. ``HARD`` names what a format may have to refuse,
each by a word that ``fill`` can leave out.

The whole of it is deterministic. Every token id is known to the shipped tokenizer, and sampled tokens are all
different, so a test can tell from an id which step sampled it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from core.pool import Pool
from core.serving.tokenizer import tokenizer_hash
from core.types import Step

T0 = 1_700_000_000.0

HARD: dict[str, str] = {
    "no_logprobs": "step m7.c.1 has ids but no log-probs",
    "no_version": "the step of trajectory open.b has no policy version",
    "no_temperature": "the step of trajectory open.c told no temperature",
    "greedy": "the step of trajectory m8.c was sampled at temperature 0",
    "empty_prompt": "the step of trajectory open.a has an empty prompt",
    "unscored": "trajectory m8.d was completed without a reward",
    "excluded_reward": "step m7.a.1, a retry, has a reward of 0.5 and is not trainable",
    "singleton": "group solo has one trajectory",
    "truncated": "step m8.b.0 ended at the length limit",
}
"""What is hard -> where it is. An algorithm that needs rewards leaves ``unscored`` out by itself."""


@dataclass(frozen=True)
class Turn:
    """One call: ``base`` is the step (by place) whose sequence the prompt begins with; None begins anew."""

    new: int
    sampled: int
    base: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One trajectory: its group, its outcome (None: unscored) and its turns."""

    uid: str
    group: str
    reward: float | None
    turns: Sequence[Turn]


def version(n: int | None, temperature: float | None = 1.0, **fields: Any) -> dict[str, Any]:
    """A step's policy version and temperature."""
    sampling = {} if temperature is None else {"temperature": temperature, "top_p": 1.0}
    return {"policy_version": n, "sampling": sampling, **fields}


def attempts(without: Collection[str] = ()) -> list[Attempt]:
    """All trajectories, but for what ``without`` leaves out (keys of ``HARD``)."""
    unknown = set(without) - HARD.keys()
    if unknown:
        raise KeyError(f"{unknown} are none of {', '.join(HARD)}")
    retry = {"call_kind": "retry", "reward": None if "excluded_reward" in without else 0.5}
    lacks = {} if "no_logprobs" in without else {"response_logprobs": None}
    cut = {} if "truncated" in without else {"finish_reason": "length"}
    made = [
        # math:7, four trajectories: a merges over three versions and two temperatures, with a retry in between.
        Attempt("m7.a", "math:7", 1.0, [
            Turn(6, 4, None, version(3)),
            Turn(2, 3, 0, version(3, **retry)),
            Turn(3, 2, 0, version(4, reward=0.25)),
            Turn(2, 5, 2, version(5, 0.7)),
        ]),
        Attempt("m7.b", "math:7", 0.0, [Turn(6, 9, None, version(3))]),
        Attempt("m7.c", "math:7", 0.5, [
            Turn(6, 3, None, version(4)), Turn(4, 2, 0, version(4, **lacks)), Turn(9, 3, None, version(5)),
        ]),
        Attempt("m7.d", "math:7", -0.5, [Turn(6, 2, None, version(4)), Turn(1, 1, 0, version(4)),
                                         Turn(5, 3, 0, version(5, transition="forked"))]),
        # math:8, its name the same up to the colon: rewards far from those of math:7.
        Attempt("m8.a", "math:8", 10.0, [Turn(5, 2, None, version(4)), Turn(3, 7, 0, version(4))]),
        Attempt("m8.b", "math:8", 7.0, [Turn(5, 8, None, version(4, **cut))]),
        Attempt("m8.c", "math:8", 9.0, [Turn(5, 3, None, version(5, 1.0 if "greedy" in without else 0.0))]),
        # code:1, flat: nothing to learn from.
        Attempt("c1.a", "code:1", 1.0, [Turn(4, 3, None, version(5)), Turn(2, 2, 0, version(5))]),
        Attempt("c1.b", "code:1", 1.0, [Turn(4, 2, None, version(5))]),
        # open, where tokens, versions or temperatures are unusual.
        Attempt("open.a", "open", 0.25, [Turn(0 if "empty_prompt" not in without else 3, 4, None, version(5))]),
        Attempt("open.b", "open", 0.75, [Turn(3, 5, None, version(5 if "no_version" in without else None))]),
        Attempt("open.c", "open", 0.0, [
            Turn(3, 2, None, version(5, 1.0 if "no_temperature" in without else None)),
        ]),
    ]  # fmt: skip
    if "unscored" not in without:
        made.append(Attempt("m8.d", "math:8", None, [Turn(5, 2, None, version(5))]))
    if "singleton" not in without:
        made.append(Attempt("solo.a", "solo", 0.5, [Turn(4, 3, None, version(5)), Turn(2, 2, 0, version(5))]))
    return made


def steps_of(attempt: Attempt, number: int, fresh: Iterator[int]) -> Iterator[Step]:
    """The steps of one trajectory; a group's first prompts are the same, every other token is ``fresh``."""
    context = {group: 300 + 10 * i for i, group in enumerate(("math:7", "math:8", "code:1", "open", "solo"))}
    sequences: list[list[int]] = []
    conversations: list[list[dict[str, Any]]] = []
    for k, turn in enumerate(attempt.turns):
        base, first = turn.base, k == 0
        before = [] if base is None else sequences[base]
        new = [context[attempt.group] + i for i in range(turn.new)] if first else [next(fresh) for _ in range(turn.new)]
        prompt, response = [*before, *new], [next(fresh) for _ in range(turn.sampled)]
        heard = {"role": "tool", "tool_call_id": f"call-{k}", "content": f"result {k}"}
        question = {"role": "user", "content": f"{attempt.group}, {'go on' if k else 'solve it'} – é"}
        messages = [*([] if base is None else [*conversations[base], heard]), *([question] if base is None else [])]
        call = {"id": f"call-{k + 1}", "type": "function", "function": {"name": "read", "arguments": f'{{"n": {k}}}'}}
        answer = {"role": "assistant", "content": f"{attempt.uid} says {k}", "tool_calls": [call]}
        if k == len(attempt.turns) - 1:
            answer.pop("tool_calls")
        rng = np.random.default_rng([number, k])
        own = {
            "step_uid": f"{attempt.uid}.{k}",
            "trajectory_uid": attempt.uid,
            "prompt_uid": attempt.group,
            "step_index": k,
            "created_at": T0 + 100 * number + k,
            "token_source": "engine",
            "prompt_ids": prompt,
            "response_ids": response,
            "response_logprobs": (-rng.exponential(1.0, len(response))).astype(np.float32).tolist(),
            "messages": messages,
            "response_message": answer,
            "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
            "parent_step_uid": None if base is None else f"{attempt.uid}.{base}",
            "n_shared_tokens": len(before),
            "transition": None if first else "compacted" if base is None else "extends",
            "finish_reason": "stop",
            "is_last": k == len(attempt.turns) - 1,
            "tokenizer_hash": tokenizer_hash(),
        }
        yield Step(**{**own, **turn.fields})
        sequences.append([*prompt, *response])
        conversations.append([*messages, answer])


def uneven_steps(without: Collection[str] = ()) -> list[Step]:
    """All steps, trajectory by trajectory."""
    fresh = count(400)
    return [step for i, one in enumerate(attempts(without)) for step in steps_of(one, i, fresh)]


def fill(pool: Pool, without: Collection[str] = ()) -> Pool:
    """Put it into a pool, every trajectory complete.

    ``without``: keys of ``HARD`` to leave out or make ordinary, for formats whose trainer can't take them.
    """
    completions = [{"kind": "complete", "trajectory_uid": one.uid, "reward": one.reward} for one in attempts(without)]
    pool.steps.append(uneven_steps(without), completions=completions)
    return pool
