"""``plan(pool, view, recipe)``: what would be trained, what not and why. Pages, HTTP and exports read it.

Pure given the pool's state and deterministic: the same state gives the same ``hash``. No Python runs per step; the
work is columns (``candidates``), masks (``funnel``) and one estimator call.

Semantics, in the order of ``funnel.REASONS``: candidates are the steps of the recipe's channel that match the
view. A step leaves when it is bad, not trainable, without trusted ids, or too long; its trajectory stays
while another step does. A trajectory leaves whole when it is bad, incomplete, unscored (where rewards are
needed), stale, or not selected. Staleness counts from the oldest version among its steps still in. A group leaves
when fewer trajectories are left than ``n_rollouts`` or the estimator's minimum. Of what is left the first
``n_rollouts`` trajectories of the first ``batch_size`` groups are chosen, and advantages compare exactly those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa

from core.batch.candidates import Candidates, candidates
from core.batch.funnel import Funnel, quoted
from core.batch.layout import TokenReader
from core.batch.recipe import Recipe
from core.batch.result import Plan, PlanGroup, PlanTrajectory
from core.credit import Credit, CreditInput
from core.credit.base import Bools, Ints
from core.types import PolicyEvent, PolicyEventKind, View

__all__ = ["Plan", "PlanGroup", "PlanSource", "PlanTrajectory", "plan"]


class PlanSource(TokenReader, Protocol):
    """What a plan reads of the pool."""

    def plan_rows(self, view: View, *, channel: str) -> pa.Table:
        """One row per candidate step in plan order, at least ``candidates.COLUMNS``."""
        ...

    def policy_events(self) -> Sequence[PolicyEvent]:
        """What trainers reported, oldest first."""
        ...


def plan(pool: PlanSource, view: View, recipe: Recipe) -> Plan:
    """Choose, exclude, assign credit.

    Args:
        pool: the pool.
        view: which steps are candidates.
        recipe: algorithm, channel, sizes, freshness, budget.

    Raises:
        InvalidInput: a filter, expression, algorithm or option that doesn't exist; names the field.
    """
    settings, needs = recipe.settings, recipe.needs
    found = candidates(pool.plan_rows(view, channel=recipe.channel))
    funnel = Funnel.start(found, view, recipe.channel)
    _drop_by_label_and_state(funnel, recipe)
    version = None
    if recipe.max_staleness is not None:
        version = _current_version(pool, found, recipe)
        _drop_stale(funnel, version, recipe.max_staleness)

    select = recipe.estimator.select
    if select is not None:
        chosen, batch = _credit_input(funnel)
        kept = np.zeros(len(found.group), dtype=np.bool_)
        kept[chosen[select(settings, batch)]] = True
        funnel.drop_trajectories("rejected", ~kept)

    least = max(needs.min_group_size, recipe.n_rollouts or 1)
    funnel.drop_trajectories("group_too_small", _sizes(funnel)[found.group] < least)
    if recipe.n_rollouts is not None:
        funnel.drop_trajectories("over_rollouts", _place_in_group(funnel) >= recipe.n_rollouts)
    if recipe.batch_size is not None:
        place = np.cumsum(_sizes(funnel) > 0) - 1
        funnel.drop_trajectories("over_batch", place[found.group] >= recipe.batch_size)

    chosen, batch = _credit_input(funnel)
    credit = recipe.estimator.advantages(recipe.options, batch)
    steps, trajectories = _tables(funnel, chosen, batch, credit)
    return Plan(
        view=view,
        recipe=recipe,
        hash=_content_hash(view, recipe, version, steps),
        policy_version=version,
        steps=steps,
        trajectories=trajectories,
        excluded=funnel.excluded,
        remaining=funnel.remaining,
        reader=pool,
    )


def _drop_by_label_and_state(funnel: Funnel, recipe: Recipe) -> None:
    found = funnel.found
    bad = frozenset({"bad"})
    funnel.drop_steps(
        "labelled_bad",
        found.is_in("quality", bad) | found.is_in("trajectory_quality", bad),
        "quality = 'bad' OR trajectory_quality = 'bad'",
        "(quality IS NULL OR quality <> 'bad') AND (trajectory_quality IS NULL OR trajectory_quality <> 'bad')",
    )
    if recipe.require_complete:
        funnel.drop_steps("incomplete", ~found.flags("complete"), "NOT complete", "complete")
    if recipe.needs.rewards:
        funnel.drop_steps(
            "unscored",
            np.isnan(found.numbers("trajectory_reward")),
            "trajectory_reward IS NULL",
            "trajectory_reward IS NOT NULL",
        )
    funnel.drop_steps("not_trainable", ~found.flags("trainable"), "NOT trainable", "trainable")
    n_prompt, n_response = found.numbers("n_prompt_tokens"), found.numbers("n_response_tokens")
    funnel.drop_steps(
        "no_tokens",
        np.isnan(n_prompt) | ~(n_response > 0),
        "n_prompt_tokens IS NULL OR n_response_tokens IS NULL OR n_response_tokens = 0",
        "n_prompt_tokens IS NOT NULL AND n_response_tokens > 0",
    )
    trusted = ", ".join(quoted(name) for name in sorted(recipe.trusted_sources))
    funnel.drop_steps(
        "token_source",
        ~found.is_in("token_source", recipe.trusted_sources),
        f"token_source NOT IN ({trusted})",
        f"token_source IN ({trusted})",
    )
    funnel.drop_steps(
        "over_length",
        n_prompt + n_response > recipe.token_budget,
        f"n_prompt_tokens + n_response_tokens > {recipe.token_budget}",
        f"n_prompt_tokens + n_response_tokens <= {recipe.token_budget}",
    )


def _current_version(pool: PlanSource, found: Candidates, recipe: Recipe) -> int | None:
    """The recipe's, else the last one that a trainer put in force, else the newest among the candidates."""
    if recipe.policy_version is not None:
        return recipe.policy_version
    in_force = [e for e in pool.policy_events() if e.event != PolicyEventKind.SYNC_STARTED]
    if in_force:
        return max(enumerate(in_force), key=lambda item: (item[1].created_at, item[0]))[1].version
    versions = found.numbers("policy_version")
    known = versions[~np.isnan(versions)]
    return int(known.max()) if len(known) else None


def _drop_stale(funnel: Funnel, current: int | None, max_staleness: int) -> None:
    found = funnel.found
    n = len(found.group)
    versions = found.numbers("policy_version")
    unknown = np.zeros(n, dtype=np.bool_)
    unknown[found.trajectory[funnel.alive & np.isnan(versions)]] = True
    funnel.drop_trajectories("version_unknown", unknown)
    oldest = np.full(n, np.inf)
    np.minimum.at(oldest, found.trajectory[funnel.alive], versions[funnel.alive])
    if current is not None:
        funnel.drop_trajectories("stale", current - oldest > max_staleness)


def _sizes(funnel: Funnel) -> Ints:
    """Trajectories left in each group: int64 [g]."""
    left = funnel.found.group[funnel.alive_trajectories()]
    return np.bincount(left, minlength=len(funnel.found.prompt_uids)).astype(np.int64)


def _place_in_group(funnel: Funnel) -> Ints:
    """How many trajectories left in its group come before each: int64 [m]."""
    left = funnel.alive_trajectories()
    before: Ints = np.cumsum(left) - left
    sizes = _sizes(funnel)
    place: Ints = before - (np.cumsum(sizes) - sizes)[funnel.found.group]
    return place


def _credit_input(funnel: Funnel) -> tuple[Ints, CreditInput]:
    """The trajectories left (their numbers), as an estimator sees them."""
    found = funnel.found
    chosen = np.flatnonzero(funnel.alive_trajectories())
    groups, group = np.unique(found.group[chosen], return_inverse=True)
    number = np.full(len(found.group), -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    return chosen, CreditInput(
        group=group.astype(np.int64),
        reward=found.numbers("trajectory_reward")[found.first[chosen]],
        step_trajectory=number[found.trajectory[funnel.alive]],
        step_reward=found.numbers("reward")[funnel.alive],
        trajectory_uids=_Texts(found.trajectory_uids.take(pa.array(chosen))),
        prompt_uids=_Texts(found.prompt_uids.take(pa.array(groups))),
    )


class _Texts(Sequence[str]):
    """An Arrow text array read as a sequence: messages name few uids, so none is converted ahead."""

    def __init__(self, array: pa.StringArray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.array[index].to_pylist()
        return self.array[index].as_py()


def _tables(funnel: Funnel, chosen: Ints, batch: CreditInput, credit: Credit | None) -> tuple[pa.Table, pa.Table]:
    """``Plan.steps`` and ``Plan.trajectories``."""
    alive: Bools = funnel.alive
    rows = funnel.found.rows.filter(pa.array(alive))
    trajectory = batch.step_trajectory
    first = np.searchsorted(trajectory, np.arange(len(chosen)))
    n_steps = np.diff(np.append(first, len(trajectory)))

    def whole(name: str) -> Ints:
        return rows[name].cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]

    n_prompt, n_response = whole("n_prompt_tokens"), whole("n_response_tokens")
    versions = rows["policy_version"].cast(pa.float64()).to_numpy()

    def per_trajectory(values: Any, how: np.ufunc) -> Any:
        return how.reduceat(values, first) if len(first) else values[:0]

    advantage = np.full(len(trajectory), np.nan) if credit is None else credit.step
    shared = None if credit is None else credit.trajectory
    trajectory_advantage = np.full(len(chosen), np.nan) if shared is None else shared
    kept = {
        name: rows[name].combine_chunks()
        for name in (
            "step_uid", "trajectory_uid", "prompt_uid", "step_index", "token_source",
            "policy_version", "reward", "trajectory_reward",
        )
    }  # fmt: skip
    steps = pa.table(
        {
            **kept,
            "group": pa.array(batch.group[trajectory].astype(np.int32)),
            "trajectory": pa.array(trajectory.astype(np.int32)),
            "n_prompt_tokens": pa.array(n_prompt),
            "n_response_tokens": pa.array(n_response),
            "advantage": _nullable(advantage),
        }
    )
    trajectories = pa.table(
        {
            "trajectory_uid": funnel.found.trajectory_uids.take(pa.array(chosen)),
            "prompt_uid": steps["prompt_uid"].take(pa.array(first)),
            "group": pa.array(batch.group.astype(np.int32)),
            "first_step": pa.array(first),
            "n_steps": pa.array(n_steps),
            "n_tokens": pa.array(per_trajectory(n_prompt + n_response, np.add)),
            "n_response_tokens": pa.array(per_trajectory(n_response, np.add)),
            "reward": _nullable(batch.reward),
            "advantage": _nullable(trajectory_advantage),
            "policy_version_min": _nullable(per_trajectory(versions, np.fmin)).cast(pa.int64()),
            "policy_version_max": _nullable(per_trajectory(versions, np.fmax)).cast(pa.int64()),
        }
    )
    return steps, trajectories


def _nullable(values: Any) -> pa.Array:
    """float64, NaN as null."""
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _content_hash(view: View, recipe: Recipe, version: int | None, steps: pa.Table) -> str:
    """sha256 over what was asked and what was chosen, step order and advantages included."""
    digest = hashlib.sha256()
    asked = {
        "view": {"filters": dict(view.filters), "where": view.where},
        "recipe": recipe.to_json(),
        "policy_version": version,
    }
    digest.update(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS, default=str))
    uids = steps["step_uid"].cast(pa.large_string()).combine_chunks()
    plain = uids.take(pa.array(np.arange(len(uids))))
    _, offsets, text = plain.buffers()
    digest.update(np.frombuffer(offsets, np.int64, len(uids) + 1).tobytes())
    if text is not None:
        digest.update(memoryview(text)[: np.frombuffer(offsets, np.int64, len(uids) + 1)[-1]])
    for name in ("trajectory_reward", "advantage"):
        digest.update(steps[name].cast(pa.float64()).to_numpy().tobytes())
    return digest.hexdigest()
