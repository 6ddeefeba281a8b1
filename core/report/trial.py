"""One attempt as the report counts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt of a run, or one that was not begun.

    Attributes:
        task: its task.
        category: of the task, in the pack's words; empty if it has none.
        agent: the harness.
        policy_version: the oldest policy version that sampled its steps; None if unknown.
        outcome: how it ended (``core.rollouts.OUTCOMES``); None if it was not begun or has not ended.
        score: reward in [0, 1]; None: there is no score, which is not 0.
        wall_s, cpu_s: duration and processor time of the agent, seconds; None if unknown.
        n_calls: model calls; None if unknown, as the next two.
        n_prompt_tokens, n_response_tokens: tokens of all calls.
        begun: whether it was begun.
    """

    task: str
    category: str = ""
    agent: str = ""
    policy_version: int | None = None
    outcome: str | None = None
    score: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    n_calls: int | None = None
    n_prompt_tokens: int | None = None
    n_response_tokens: int | None = None
    begun: bool = True
