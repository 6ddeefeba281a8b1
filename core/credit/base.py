"""What an advantage estimator is: what it needs, what it can be told, and what it gives.

Rewards are known when they get here: an unscored trajectory is None upstream, and an estimator that needs
rewards refuses NaN by name instead of reading it as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of an estimator.

    Attributes:
        default: value when the recipe says nothing.
        description: what it does; names whose default it is.
        choices: allowed values, or None for a number.
        minimum: smallest number, inclusive.
        optional: None is allowed.
        whole: the number must be an integer.
    """

    default: Any
    description: str
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    optional: bool = False
    whole: bool = False

    def check(self, name: str, value: Any) -> Any:
        """The value, or InvalidInput that names the option."""
        where = f"options.{name}"
        if value is None and self.optional:
            return None
        if self.choices is not None:
            if value not in self.choices:
                raise InvalidInput(f"{name} is {value!r}", field=where, hint=f"one of {', '.join(self.choices)}")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise InvalidInput(f"{name} is {value!r}, not a number", field=where)
        if self.whole and value != int(value):
            raise InvalidInput(f"{name} is {value}, not a whole number", field=where)
        if self.minimum is not None and value < self.minimum:
            raise InvalidInput(f"{name} is {value}", field=where, hint=f"at least {self.minimum:g}")
        return int(value) if self.whole else float(value)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a batch must hold for an estimator to mean anything.

    Attributes:
        rewards: every trajectory has a score.
        min_group_size: trajectories per prompt group.
        exact_tokens: the loss forms a probability ratio, so ids must be the sampled ones.
    """

    rewards: bool = False
    min_group_size: int = 1
    exact_tokens: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CreditInput:
    """n trajectories in g prompt groups, s steps.

    Attributes:
        group: int64 [n], group of each trajectory, 0..g-1.
        reward: float64 [n], score R of each trajectory; NaN where unknown.
        step_trajectory: int64 [s], trajectory of each step.
        step_reward: float64 [s], NaN where unknown.
        trajectory_uids: [n], for messages.
        prompt_uids: [g], for messages.
    """

    group: Ints
    reward: Floats
    step_trajectory: Ints
    step_reward: Floats
    trajectory_uids: Sequence[str]
    prompt_uids: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Advantages. NaN is unassigned, which isn't 0.

    Attributes:
        step: float64 [s].
        trajectory: float64 [n] where all steps of a trajectory share one value, else None.
    """

    step: Floats
    trajectory: Floats | None


@dataclass(frozen=True, slots=True)
class Estimator:
    """An entry of the registry.

    Attributes:
        name: what a recipe calls it.
        title: what a page calls it.
        formula: one line of text.
        options: settings by name.
        needs: what a batch must hold, given checked options.
        compute: checked options and a batch -> advantages; None for supervised use.
        select: checked options and a batch -> bool [n], which trajectories to keep; None keeps all.
    """

    name: str
    title: str
    formula: str
    needs: Callable[[Mapping[str, Any]], Needs]
    options: Mapping[str, Option] = field(default_factory=dict)
    compute: Callable[[Mapping[str, Any], CreditInput], Credit] | None = None
    select: Callable[[Mapping[str, Any], CreditInput], Bools] | None = None

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Given options checked, the rest filled with defaults. InvalidInput names what is wrong."""
        for name in given:
            if name not in self.options:
                raise InvalidInput(
                    f"{self.name} has no option {name!r}",
                    field=f"options.{name}",
                    hint=f"its options: {', '.join(self.options) or 'none'}",
                )
        return {
            name: option.check(name, given[name]) if name in given else option.default
            for name, option in self.options.items()
        }

    def lacks(self, settings: Mapping[str, Any], batch: CreditInput) -> list[str]:
        """Which trajectory or group lacks what, in words; empty when the needs are met."""
        needs = self.needs(settings)
        found = []
        if needs.rewards:
            for i in np.flatnonzero(np.isnan(batch.reward)).tolist():
                found.append(f"trajectory {batch.trajectory_uids[i]} has no reward")
        sizes = np.bincount(batch.group, minlength=len(batch.prompt_uids))
        for g in np.flatnonzero(sizes < needs.min_group_size).tolist():
            found.append(f"group {batch.prompt_uids[g]} has {sizes[g]} of {needs.min_group_size} needed trajectories")
        return found

    def advantages(self, given: Mapping[str, Any], batch: CreditInput) -> Credit | None:
        """Check options and needs, then estimate; None for supervised use.

        Raises:
            InvalidInput: an unknown or wrong option, or a batch that lacks something (all named, first 5 shown).
        """
        settings = self.settings(given)
        lacks = self.lacks(settings, batch)
        if lacks:
            more = f" and {len(lacks) - 5} more" if len(lacks) > 5 else ""
            raise InvalidInput(f"{self.name}: {'; '.join(lacks[:5])}{more}", field="algorithm")
        return None if self.compute is None else self.compute(settings, batch)


SINGLETON = Option(
    "exclude",
    "A group of one has nothing to compare with. exclude: not planned (default); "
    "raw: the reward itself (Agent-R1, StepPO); zero: no update (slime)",
    choices=("exclude", "raw", "zero"),
)


def group_size_needs(settings: Mapping[str, Any]) -> Needs:
    """Needs of the group-comparing estimators: two per group unless singletons are allowed."""
    return Needs(rewards=True, min_group_size=2 if settings["singleton"] == "exclude" else 1, exact_tokens=True)


def centred(batch: CreditInput) -> tuple[Floats, Ints]:
    """Reward minus its group's mean, float64 [n], and group sizes, int64 [g].

    A group whose rewards are all equal gives exact zeros, free of rounding.
    """
    n_groups = len(batch.prompt_uids)
    sizes = np.bincount(batch.group, minlength=n_groups).astype(np.int64)
    mean = np.bincount(batch.group, weights=batch.reward, minlength=n_groups) / np.maximum(sizes, 1)
    low = np.full(n_groups, np.inf)
    high = np.full(n_groups, -np.inf)
    np.minimum.at(low, batch.group, batch.reward)
    np.maximum.at(high, batch.group, batch.reward)
    flat = (low == high)[batch.group]
    return np.where(flat, 0.0, batch.reward - mean[batch.group]), sizes


def with_singletons(settings: Mapping[str, Any], batch: CreditInput, sizes: Ints, values: Floats) -> Credit:
    """Apply the singleton rule, then give each step its trajectory's value."""
    if settings["singleton"] == "raw":
        values = np.where(sizes[batch.group] == 1, batch.reward, values)
    return Credit(step=values[batch.step_trajectory], trajectory=values)
