"""The input and output of estimators, as arrays.

An unscored trajectory has the reward None elsewhere and NaN in these arrays, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MESSAGES_MAX = 100
"""The most messages of ``Estimator.lacks``; the last one counts the others."""


@dataclass(frozen=True, slots=True)
class Needs:
    """An estimator's needs of a batch.

    Attributes:
        rewards: every trajectory has a score.
        min_group_size: trajectories per prompt group.
        exact_tokens: the loss forms a probability ratio, so ids must be the sampled ones.
        fields: keys of ``core.credit.fields.FIELDS`` that every step (``baseline``: every trajectory) must have.
        contiguous: the estimator chains the steps of a trajectory, so none may be missing.
        chained: it uses step rewards: it needs each step's predecessor, and the rewards of excluded steps.
    """

    rewards: bool = False
    min_group_size: int = 1
    exact_tokens: bool = False
    fields: tuple[str, ...] = ()
    contiguous: bool = False
    chained: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CreditInput:
    """n trajectories in g prompt groups, s steps with t response tokens.

    Steps of one trajectory are contiguous and in order. Fields that an estimator doesn't need may be None.

    Attributes:
        group: int64 [n], group of each trajectory, 0..g-1.
        reward: float64 [n], score R of each trajectory; NaN where unknown.
        step_trajectory: int64 [s], trajectory of each step.
        step_reward: float64 [s], NaN where unknown.
        trajectory_uids: [n], for messages.
        prompt_uids: [g], for messages.
        step_uids: [s], for messages; empty: steps are named by their number.
        n_response: int64 [s], response tokens of each step; None counts one each.
        value: float64 [s], critic's V of the state before a step's first response token; NaN where unknown.
        token_value: float64 [t], critic's V before each response token, steps one after another; NaN where unknown.
        token_logprob: float64 [t], log μ(token) in nats; NaN where unknown.
        teacher_logprob: float64 [t], the teacher's log-prob of the same token; NaN where unknown.
        anchor: [s], the step's observation as text, equal for equal observations; None where unknown.
        baseline: float64 [n], reward of a greedy rollout of the same prompt; NaN where unknown.
        missing: [n], why a trajectory's steps don't form a chain; None where they do.
        steps_reward: float64 [n], the reward sum of all steps of a trajectory, also of those that are not in the batch;
            None: all are in it.
        before: int64 [s], the predecessor of each step, -1 for none. Choices of one call and forks have the same
            predecessor. None: the step before it.
    """

    group: Ints
    reward: Floats
    step_trajectory: Ints
    step_reward: Floats
    trajectory_uids: Sequence[str]
    prompt_uids: Sequence[str]
    step_uids: Sequence[str] = ()
    n_response: Ints | None = None
    value: Floats | None = None
    token_value: Floats | None = None
    token_logprob: Floats | None = None
    teacher_logprob: Floats | None = None
    anchor: Sequence[str | None] | None = None
    baseline: Floats | None = None
    missing: Sequence[str | None] | None = None
    steps_reward: Floats | None = None
    before: Ints | None = None

    @property
    def n_tokens(self) -> Ints:
        """Response tokens of each step: int64 [s]; one each if the batch has no counts."""
        return np.ones(len(self.step_trajectory), dtype=np.int64) if self.n_response is None else self.n_response

    def step_name(self, index: int) -> str:
        """``step UID of trajectory UID``, for messages."""
        uid = self.step_uids[index] if len(self.step_uids) else f"number {index}"
        return f"step {uid} of trajectory {self.trajectory_uids[int(self.step_trajectory[index])]}"


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Advantages. NaN means unassigned, which is different from 0.

    Attributes:
        step: float64 [s]; NaN if the tokens of a step differ.
        trajectory: float64 [n] if all steps of a trajectory have the same value, else None.
        token: float64 [t], response tokens of all steps, if tokens of a step differ; else None.
        step_return: float64 [s], the critic's target per step, else None.
        token_return: float64 [t], the critic's target per token, else None.
    """

    step: Floats
    trajectory: Floats | None
    token: Floats | None = None
    step_return: Floats | None = None
    token_return: Floats | None = None

    @property
    def level(self) -> str:
        """``trajectory``, ``step`` or ``token``: the finest unit whose values differ."""
        if self.token is not None:
            return "token"
        return "step" if self.trajectory is None else "trajectory"

    def clipped(self, bound: float) -> Credit:
        """Advantages clipped to ±bound; returns are unchanged."""

        def cut(values: Floats | None) -> Floats | None:
            return None if values is None else np.clip(values, -bound, bound)

        return Credit(np.clip(self.step, -bound, bound), cut(self.trajectory), cut(self.token), self.step_return,
                      self.token_return)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Preference pairs of a batch.

    Attributes:
        chosen, rejected: int64 [p], trajectories; both of a pair are of one prompt group.
        margin: float64 [p], reward of the chosen minus that of the rejected.
    """

    chosen: Ints
    rejected: Ints
    margin: Floats
