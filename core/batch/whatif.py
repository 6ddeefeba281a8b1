"""Plans of the same view with other settings, for pages that compare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.batch.plan import Estimate, PlanPool, PlanSource, count_plan, estimate
from core.batch.recipe import Recipe, parse_recipe
from core.errors import InvalidInput, NotFound
from core.pool.edits import Edit
from core.tree.sequences import Sequences
from core.types import View


class _SameRows:
    """``pool.training`` that reads candidate rows, and what is asked for the same steps again, once."""

    def __init__(self, source: PlanSource) -> None:
        self._source = source
        self._rows: dict[str, pa.Table] = {}
        self._rewards: dict[str, pa.Table] = {}
        self._fields: dict[tuple[str, ...], tuple[np.ndarray, pa.Table]] = {}
        self._hashes: tuple[np.ndarray, pa.ChunkedArray] | None = None

    def plan_rows(self, view: View, *, channel: str) -> pa.Table:
        """The rows that were read first."""
        key = f"{dict(view.filters)!r} {view.where!r} {channel!r}"
        if key not in self._rows:
            self._rows[key] = self._source.plan_rows(view, channel=channel)
        return self._rows[key]

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        return self._source.credit_fields(step_uids, fields)

    def step_fields(self, step_ids: np.ndarray, fields: Sequence[str]) -> pa.Table:
        """Those of the last steps that were asked for these fields are kept."""
        key = tuple(sorted(fields))
        known = self._fields.get(key)
        if known is None or not np.array_equal(known[0], step_ids):
            known = self._fields[key] = (step_ids, self._source.step_fields(step_ids, fields))
        return known[1]

    def facts_hashes(self, step_ids: np.ndarray) -> pa.ChunkedArray:
        """Those of the last steps are kept."""
        if self._hashes is None or not np.array_equal(self._hashes[0], step_ids):
            self._hashes = (step_ids, self._source.facts_hashes(step_ids))
        return self._hashes[1]

    def version_in_force(self, channel: str) -> int | None:
        return self._source.version_in_force(channel)

    def trajectory_rewards(self, policy: Any, *, channel: str) -> pa.Table:
        """The rewards that were read first."""
        key = f"{policy!r} {channel!r}"
        if key not in self._rewards:
            self._rewards[key] = self._source.trajectory_rewards(policy, channel=channel)
        return self._rewards[key]

    def edits(self) -> list[Edit]:
        return self._source.edits()

    def step_values(self, step_uids: Any, model: str) -> pa.Array:
        return self._source.step_values(step_uids, model)

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        return self._source.trajectory(trajectory_uid, tokens=tokens)

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        return self._source.trajectories(trajectory_uids)

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        return self._source.sequences(step_uids)


class SamePool:
    """A pool with cached candidate rows, for several plans of the same view."""

    def __init__(self, pool: PlanPool) -> None:
        self.training: PlanSource = _SameRows(pool.training)
        self.versions = pool.versions


@dataclass(frozen=True, slots=True)
class Outcome:
    """The plan's counts for one value of a recipe's field. With an ``error``, the counts are 0."""

    value: Any
    n_groups: int = 0
    n_trajectories: int = 0
    n_steps: int = 0
    n_tokens: int = 0
    error: str | None = None


def sweep(pool: PlanPool, view: View, recipe: Recipe, name: str, values: Iterable[Any]) -> list[Outcome]:
    """Plan once per value of the recipe's field ``name``. InvalidInput when there is no such field."""
    if name not in Recipe.model_fields:
        raise InvalidInput(f"a recipe has no field {name!r}", field="name")
    outcomes = []
    same = SamePool(pool)
    for value in values:
        try:
            counts = count_plan(same, view, parse_recipe({**recipe.to_json(), name: value}))
        except InvalidInput as error:
            outcomes.append(Outcome(value, error=error.message))
        else:
            outcomes.append(
                Outcome(value, counts["n_groups"], counts["n_trajectories"], counts["n_steps"], counts["n_tokens"])
            )
    return outcomes


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryCredit:
    """One estimator's advantages over one trajectory.

    Attributes:
        algorithm: name of the estimator.
        level: ``trajectory``, ``step`` or ``token``: the finest unit whose advantages differ; None: unassigned.
        steps: float64 [n], advantage of each step, NaN where it differs by token or is unassigned.
        tokens: float32 [m], advantage of each response token of the n steps.
        error: why there is no credit: a missing field, or why the trajectory isn't in the plan.
    """

    algorithm: str
    level: str | None = None
    steps: NDArray[np.float64] | None = None
    tokens: NDArray[np.float32] | None = None
    error: str | None = None


def credit_of(
    pool: PlanPool, view: View, recipe: Recipe, algorithms: Sequence[str], trajectory_uid: str
) -> list[TrajectoryCredit]:
    """The same trajectory under several estimators, with default options; the recipe's estimator keeps its own.

    ``batch_size`` is ignored, so that the trajectory's group is in each plan. Then whether a trajectory is in a plan
    follows from its own group. So the group is planned first; all of the view only for estimators that compare across
    groups, if the trajectory is in the plan.
    """
    credits = []
    whole, group = SamePool(pool), SamePool(pool)
    of_group = None if recipe.dataset is not None else _group_view(pool, view, trajectory_uid)
    for name in algorithms:
        defaults: dict[str, Any] = {} if name == recipe.algorithm else {"options": {}}
        try:
            wanted = parse_recipe({**recipe.to_json(), "algorithm": name, "batch_size": None, **defaults})
            credit = None
            if of_group is not None:
                credit = _of_trajectory(estimate(group, of_group, wanted), name, trajectory_uid)
            if credit is None or (credit.error is None and not wanted.estimator.within_group(wanted.settings)):
                credit = _of_trajectory(estimate(whole, view, wanted), name, trajectory_uid)
        except InvalidInput as error:
            credit = TrajectoryCredit(name, error=error.message)
        credits.append(credit)
    return credits


def _group_view(pool: PlanPool, view: View, trajectory_uid: str) -> View | None:
    """The view narrowed to a trajectory's prompt group; None where it can't be, or there is no such trajectory."""
    if view.filters.get("prompt_uid") is not None:
        return None
    try:
        prompt_uid = pool.training.trajectory(trajectory_uid, tokens=False)["prompt_uid"]
    except NotFound:
        return None
    return None if prompt_uid is None else View({**view.filters, "prompt_uid": prompt_uid}, view.where)


def _of_trajectory(made: Estimate, name: str, trajectory_uid: str) -> TrajectoryCredit:
    level = None if made.credit is None else made.credit.level
    place = pc.index(made.trajectory_uids, trajectory_uid).as_py()
    if place < 0:
        lacks = next((text for text in made.lacks if trajectory_uid in text), None)
        worst = max(made.excluded, key=lambda reason: reason.n_trajectories, default=None)
        missing = made.lacks[0] if made.lacks else None if worst is None else worst.label
        return TrajectoryCredit(name, level, error=lacks or missing or "the trajectory is not in its plan")
    first, end = np.searchsorted(made.batch.step_trajectory, [place, place + 1])
    n_tokens = made.batch.n_tokens
    steps = np.full(end - first, np.nan) if made.credit is None else made.credit.step[first:end]
    if made.credit is None or made.credit.token is None:
        return TrajectoryCredit(name, level, steps, np.repeat(steps, n_tokens[first:end]).astype(np.float32))
    begin = int(n_tokens[:first].sum())
    tokens = made.credit.token[begin : begin + int(n_tokens[first:end].sum())]
    return TrajectoryCredit(name, level, steps, tokens.astype(np.float32))
