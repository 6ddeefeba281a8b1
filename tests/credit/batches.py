"""Random and hand-made estimator inputs: groups of trajectories of steps, as plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from core.credit import CreditInput


@dataclass
class Step:
    """One step as a producer would describe it."""

    reward: float | None = None
    value: float = 0.0
    anchor: str = "s"
    token_values: list[float] = field(default_factory=lambda: [0.0])
    logprobs: list[float] = field(default_factory=lambda: [-1.0])
    teacher: list[float] = field(default_factory=lambda: [-1.0])


@dataclass
class Trajectory:
    """Steps, and the trajectory's score where it isn't the sum of theirs."""

    steps: list[Step]
    score: float | None = None
    baseline: float = 0.0

    @property
    def total(self) -> float:
        return sum(s.reward or 0.0 for s in self.steps) if self.score is None else self.score

    @property
    def rewards(self) -> list[float]:
        """Per step, what is left of the score on the last one."""
        own = [s.reward or 0.0 for s in self.steps]
        own[-1] += self.total - sum(own)
        return own


Groups = list[list[Trajectory]]


def batch_of(groups: Groups) -> CreditInput:
    trajectories = [(g, t) for g, group in enumerate(groups) for t in group]
    steps = [(i, s) for i, (_, t) in enumerate(trajectories) for s in t.steps]

    def flat(name):
        return np.array([x for _, s in steps for x in getattr(s, name)], dtype=np.float64)

    return CreditInput(
        group=np.array([g for g, _ in trajectories], dtype=np.int64),
        reward=np.array([t.total for _, t in trajectories], dtype=np.float64),
        step_trajectory=np.array([i for i, _ in steps], dtype=np.int64),
        step_reward=np.array([np.nan if s.reward is None else s.reward for _, s in steps]),
        trajectory_uids=[f"t{i}" for i in range(len(trajectories))],
        prompt_uids=[f"g{i}" for i in range(len(groups))],
        step_uids=[f"s{i}" for i in range(len(steps))],
        n_response=np.array([len(s.token_values) for _, s in steps], dtype=np.int64),
        value=np.array([s.value for _, s in steps], dtype=np.float64),
        token_value=flat("token_values"),
        token_logprob=flat("logprobs"),
        teacher_logprob=flat("teacher"),
        anchor=[s.anchor for _, s in steps],
        baseline=np.array([t.baseline for _, t in trajectories], dtype=np.float64),
        missing=[None] * len(trajectories),
    )


number = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    n = draw(st.integers(1, 4))
    some = st.lists(number, min_size=n, max_size=n)
    return Step(
        reward=draw(st.none() | st.sampled_from([0.0, 0.25, 1.0, -1.0])),
        value=draw(number),
        anchor=draw(st.sampled_from(["door", "doors open", "hall", "a long corridor", "a long corridor!"])),
        token_values=draw(some),
        logprobs=draw(some),
        teacher=draw(some),
    )


trajectories = st.builds(
    Trajectory,
    steps=st.lists(steps(), min_size=1, max_size=4),
    score=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
    baseline=number,
)
groups = st.lists(st.lists(trajectories, min_size=2, max_size=4), min_size=1, max_size=3)

CHECK: Groups = [
    [
        Trajectory([Step(r, v, s) for r, v, s in [(0.0, 0.2, "s0"), (0.0, 0.4, "s1"), (1.0, 0.6, "s2")]]),
        Trajectory([Step(r, v, s) for r, v, s in [(0.0, 0.1, "s0"), (0.0, 0.3, "s9")]]),
    ]
]
"""The group of research/credit.md."""
