"""The base of advantage estimators: options, needs, computation, and shared arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.credit.fields import unmet
from core.credit.types import MESSAGES_MAX, Bools, Credit, CreditInput, Floats, Ints, Needs, Pairs
from core.errors import InvalidInput

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of an estimator.

    Attributes:
        default: value if the recipe doesn't set it.
        description: its effect, and the origin of the default.
        choices: allowed values, or None for a number.
        minimum: smallest number, inclusive.
        maximum: greatest number, inclusive.
        optional: None is allowed.
        integer: the number must be an integer.
    """

    default: Any
    description: str
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False
    integer: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Check a value and return it. InvalidInput names the option."""
        where = f"options.{name}"
        if value is None and self.optional:
            return None
        if self.choices is not None:
            if value not in self.choices:
                raise InvalidInput(f"{name} is {value!r}", field=where, hint=f"one of {', '.join(self.choices)}")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise InvalidInput(f"{name} is {value!r}, not a number", field=where)
        if self.integer and value != int(value):
            raise InvalidInput(f"{name} is {value}, not a whole number", field=where)
        if self.minimum is not None and value < self.minimum:
            raise InvalidInput(f"{name} is {value}", field=where, hint=f"at least {self.minimum:g}")
        if self.maximum is not None and value > self.maximum:
            raise InvalidInput(f"{name} is {value}", field=where, hint=f"at most {self.maximum:g}")
        return int(value) if self.integer else float(value)


CLIP = Option(None, "Clip advantages to ±clip; none (default, verl): no clipping", minimum=0, optional=True)


def never(settings: Mapping[str, Any]) -> bool:
    """``Estimator.within_group`` of estimators that compare all trajectories of a batch."""
    return False


def always(settings: Mapping[str, Any]) -> bool:
    """``Estimator.within_group`` of estimators that compare within groups, or nothing."""
    return True


@dataclass(frozen=True, slots=True)
class Estimator:
    """An entry of the registry.

    Attributes:
        name: its name in recipes.
        title: its name on pages.
        formula: one line of text.
        options: settings by name; those that compute advantages have ``clip`` as well.
        needs: checked options -> the needs that a batch must meet.
        compute: checked options and a batch -> advantages; None for supervised use.
        select: checked options and a batch -> bool [n], which trajectories to keep; None keeps all.
        pairs: checked options and a batch -> preference pairs; None for estimators without pairs.
        labels: checked options and a batch -> bool [n], desirable or not; None for estimators without labels.
        within_group: checked options -> whether each trajectory's result follows from its own prompt group, so that
            a plan of this group alone has the same.
    """

    name: str
    title: str
    formula: str
    needs: Callable[[Mapping[str, Any]], Needs]
    options: Mapping[str, Option] = field(default_factory=dict)
    compute: Callable[[Mapping[str, Any], CreditInput], Credit] | None = None
    select: Callable[[Mapping[str, Any], CreditInput], Bools] | None = None
    pairs: Callable[[Mapping[str, Any], CreditInput], Pairs] | None = None
    labels: Callable[[Mapping[str, Any], CreditInput], Bools] | None = None
    within_group: Callable[[Mapping[str, Any]], bool] = never

    @property
    def imitates(self) -> bool:
        """Whether all chosen answers are examples to imitate: no advantages, pairs or labels tell good from bad."""
        return self.compute is None and self.pairs is None and self.labels is None

    @property
    def all_options(self) -> dict[str, Option]:
        """The estimator's options and the shared ones."""
        return {**self.options, **({} if self.compute is None else {"clip": CLIP})}

    def settings(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """The requested options, checked, with defaults for the others. InvalidInput names the invalid option."""
        options = self.all_options
        for name in requested:
            if name not in options:
                raise InvalidInput(
                    f"{self.name} has no option {name!r}",
                    field=f"options.{name}",
                    hint=f"its options: {', '.join(options) or 'none'}",
                )
        return {
            name: option.check(name, requested[name]) if name in requested else option.default
            for name, option in options.items()
        }

    def lacks(self, settings: Mapping[str, Any], batch: CreditInput) -> list[str]:
        """Messages about steps, trajectories and groups that lack something; empty if all needs are met."""
        needs = self.needs(settings)
        messages = []
        if needs.rewards:
            for i in np.flatnonzero(np.isnan(batch.reward))[:MESSAGES_MAX].tolist():
                messages.append(f"trajectory {batch.trajectory_uids[i]} has no reward")
        for one in unmet(needs, batch):
            messages += one.messages
        sizes = np.bincount(batch.group, minlength=len(batch.prompt_uids))
        for g in np.flatnonzero(sizes < needs.min_group_size)[:MESSAGES_MAX].tolist():
            messages.append(
                f"group {batch.prompt_uids[g]} has {sizes[g]} of {needs.min_group_size} needed trajectories"
            )
        return messages

    def advantages(self, options: Mapping[str, Any], batch: CreditInput) -> Credit | None:
        """Check options and needs, then estimate; None for supervised use.

        Raises:
            InvalidInput: an option is unknown or invalid, or the batch does not meet the needs (the first 5 are shown).
        """
        settings = self.settings(options)
        lacks = self.lacks(settings, batch)
        if lacks:
            more = f" and {len(lacks) - 5} more" if len(lacks) > 5 else ""
            raise InvalidInput(f"{self.name}: {'; '.join(lacks[:5])}{more}", field="algorithm")
        if self.compute is None:
            return None
        credit = self.compute(settings, batch)
        return credit if settings["clip"] is None else credit.clipped(settings["clip"])


EDITS = Option(
    "with",
    "Answers that people edited. with: take them, whatever the reward of their trajectory (default); only: nothing "
    "else; without: leave them out",
    choices=("with", "only", "without"),
)
"""Of supervised estimators and of pairs: edited tokens were not sampled, so no other estimator has it."""

SINGLETON = Option(
    "exclude",
    "Groups with a single trajectory. exclude: leave them out (default); "
    "raw: the reward itself (Agent-R1, StepPO); zero: advantage 0 (slime)",
    choices=("exclude", "raw", "zero"),
)


def group_size_needs(settings: Mapping[str, Any]) -> Needs:
    """Needs of estimators that compare within groups: two trajectories per group unless singletons are allowed."""
    return Needs(rewards=True, min_group_size=2 if settings["singleton"] == "exclude" else 1, exact_tokens=True)


def centred(batch: CreditInput) -> tuple[Floats, Ints]:
    """Reward minus its group's mean, float64 [n], and group sizes, int64 [g].

    If all rewards of a group are equal, the results are exactly 0, without rounding errors.
    """
    return centre(batch.reward, batch.group, len(batch.prompt_uids))


def centre(values: Floats, owner: Ints, n_owners: int) -> tuple[Floats, Ints]:
    """Values minus the mean of their owner, float64 as ``values``, and the count of each owner, int64 [n_owners]."""
    sizes = np.bincount(owner, minlength=n_owners).astype(np.int64)
    mean = np.bincount(owner, weights=values, minlength=n_owners) / np.maximum(sizes, 1)
    low = np.full(n_owners, np.inf)
    high = np.full(n_owners, -np.inf)
    np.minimum.at(low, owner, values)
    np.maximum.at(high, owner, values)
    flat = (low == high)[owner]
    return np.where(flat, 0.0, values - mean[owner]), sizes


def normalised(values: Floats, owner: Ints, n_owners: int, *, ddof: int, eps: float) -> Floats:
    """(Value − owner's mean) / (owner's std + eps); 0 for owners with one value. float64 as ``values``."""
    deviation, sizes = centre(values, owner, n_owners)
    square = np.bincount(owner, weights=deviation**2, minlength=n_owners)
    std = np.sqrt(square / np.maximum(sizes - ddof, 1))
    result: Floats = deviation / (std[owner] + eps)
    return result


def with_singletons(settings: Mapping[str, Any], batch: CreditInput, sizes: Ints, values: Floats) -> Credit:
    """Apply the singleton rule, then assign each step its trajectory's value."""
    values = raw_singletons(settings, batch, sizes, values)
    return Credit(step=values[batch.step_trajectory], trajectory=values)


def raw_singletons(settings: Mapping[str, Any], batch: CreditInput, sizes: Ints, values: Floats) -> Floats:
    """Under the ``raw`` rule, replace the value of single-trajectory groups by the reward: float64 [n]."""
    if settings["singleton"] == "raw":
        return np.where(sizes[batch.group] == 1, batch.reward, values)
    return values
