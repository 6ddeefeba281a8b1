"""What needs attention now: problems of the pool that people can solve, each with the view of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core.batch.recipe import Recipe
from core.types import View


class Counted(Protocol):
    """``pool.steps``, ``pool.trajectories`` or ``pool.groups``."""

    def count(self, view: View) -> int:
        """Rows of the view."""
        ...


class AttentionPool(Protocol):
    """The parts of a pool that are counted."""

    @property
    def steps(self) -> Counted:
        """Steps."""
        ...

    @property
    def trajectories(self) -> Counted:
        """Trajectories."""
        ...

    @property
    def groups(self) -> Counted:
        """Prompt groups."""
        ...


@dataclass(frozen=True, slots=True)
class Attention:
    """One problem.

    Attributes:
        name: a short name.
        level: what is counted: steps, trajectories or groups.
        n: how many.
        view: exactly these rows, at that level.
        what: the problem in one sentence.
        then: what to do about it.
    """

    name: str
    level: str
    n: int
    view: View
    what: str
    then: str


def attention(pool: AttentionPool, recipe: Recipe) -> list[Attention]:
    """The problems that the pool has now, in the order of ``CHECKS``; ``recipe`` gives the greatest staleness."""
    counted = {"steps": pool.steps, "trajectories": pool.trajectories, "groups": pool.groups}
    problems = []
    for name, level, view, what, then in (*CHECKS, *_stale(recipe)):
        n = counted[level].count(view)
        if n:
            problems.append(Attention(name, level, n, view, what, then))
    return problems


Check = tuple[str, str, View, str, str]

CHECKS: Sequence[Check] = (
    (
        "Failed calls",
        "steps",
        View({"status": "error"}),
        "The engine or provider answered with an error.",
        "Check the engine on Settings.",
    ),
    (
        "Looping agents",
        "trajectories",
        View({"findings": "looping"}),
        "An agent gave the same answer three times or more.",
        "Review them; label them bad, or keep them as failures.",
    ),
    (
        "Suspected reward hacking",
        "trajectories",
        View({"findings": "reward_hacking"}),
        "The reward is high, but a check failed.",
        "Review them and set the reward.",
    ),
    (
        "Groups without variance",
        "groups",
        View({"findings": "zero_variance"}),
        "All scored attempts have the same reward, so GRPO learns nothing from them.",
        "Choose tasks of another difficulty, or collect more attempts.",
    ),
    (
        "Complete, but unscored",
        "trajectories",
        View({"complete": True, "trajectory_reward_state": "unscored"}),
        "Algorithms that need a reward leave them out.",
        "Score them with a verifier or by review.",
    ),
    (
        "Uncertain trajectories",
        "steps",
        View({"findings": "uncertain"}),
        "The calls were not named and several attempts fit.",
        "Use session keys, or label the steps trainable.",
    ),
    (
        "Length mismatches",
        "steps",
        View({"findings": "length_mismatch"}),
        "Token ids, log-probs and counts differ in length, so the steps can't be trained on.",
        "Check the engine's version and settings.",
    ),
)
"""Name, level, view, what it is, what to do. More serious problems come first."""


def _stale(recipe: Recipe) -> Sequence[Check]:
    if recipe.max_staleness is None:
        return ()
    return (
        (
            "Stale groups",
            "groups",
            View({"channel": recipe.channel}, f"staleness > {recipe.max_staleness}"),
            f"They have steps more than {recipe.max_staleness} policy versions old, which the recipe leaves out.",
            "Collect new attempts, or raise max_staleness.",
        ),
    )
