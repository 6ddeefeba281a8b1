"""Chooses a plan's steps among the ready candidates: needs, selection, group sizes, order; builds its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.batch.candidates import as_text
from core.batch.fields import StepFields, baselines, broken_chains, with_fields
from core.batch.funnel import Funnel
from core.batch.links import origins
from core.batch.recipe import Recipe
from core.batch.source import PlanSource
from core.credit import Credit, CreditInput
from core.credit.chain import step_rewards
from core.credit.dapo import has_spread
from core.credit.fields import unmet
from core.credit.types import MESSAGES_MAX, Floats, Ints


@dataclass(slots=True, eq=False)
class TrajectorySelector:
    """Excludes trajectories in a funnel until only those of the plan remain."""

    funnel: Funnel
    recipe: Recipe
    fields: StepFields | None = None
    baseline: Floats | None = None
    before: Ints | None = None
    steps_reward: Floats | None = None
    score: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Scores of all candidate trajectories: float64 [m]."""
        candidates = self.funnel.candidates
        self.score = candidates.numbers("trajectory_reward")[candidates.first]

    def drop_missing_fields(self, source: PlanSource) -> list[str]:
        """Drop trajectories that don't meet the estimator's needs; returns messages that name the steps."""
        funnel, needs = self.funnel, self.recipe.needs
        candidates, messages = funnel.candidates, []
        if needs.contiguous:
            broken = broken_chains(candidates, funnel.alive)
            uids = candidates.trajectory_uids.filter(pa.array(broken & funnel.alive_trajectories()))
            messages += [
                f"trajectory {uid}: a step is missing before its end, and {self.recipe.algorithm} chains steps"
                for uid in uids[:MESSAGES_MAX].to_pylist()
            ]
            funnel.drop_trajectories("broken_chain", broken)
        if needs.chained:
            self._chain(source)
        if not needs.fields:
            return messages
        alive = np.flatnonzero(funnel.alive)
        fields = source.step_fields(candidates.step_ids[alive], needs.fields)
        if self.recipe.value_model is not None and "value" in needs.fields:
            uids = candidates.rows["step_uid"].take(pa.array(alive)).combine_chunks()
            place = fields.column_names.index("value")
            fields = fields.set_column(place, "value", source.step_values(uids, self.recipe.value_model))
        self.fields = StepFields(alive, fields, needs.fields)
        if "baseline" in needs.fields:
            self.baseline, greedy = baselines(candidates, alive, self.fields)
            funnel.drop_trajectories("baseline", greedy)
        batch, _, chosen = self.batch()
        for one in unmet(replace(needs, contiguous=False), batch):
            out = np.zeros(len(candidates.group), dtype=np.bool_)
            out[chosen[one.trajectories]] = True
            funnel.drop_trajectories("lacks_field", out)
            messages += one.messages
        return messages

    def _chain(self, source: PlanSource) -> None:
        """Set the parent of each step, and the reward sum over all steps of each trajectory."""
        candidates = self.funnel.candidates
        self.before = origins(candidates, self.funnel.alive, source.step_fields(candidates.step_ids, ["link"]))
        earned = source.trajectory_rewards(("steps",), channel=self.recipe.channel)
        place = pc.index_in(candidates.trajectory_uids, value_set=earned["trajectory_uid"].combine_chunks())
        total = earned["reward"].combine_chunks().take(place)
        self.steps_reward = pc.fill_null(total, 0.0).to_numpy(zero_copy_only=False)

    def drop_unselected(self) -> None:
        """Keep the trajectories that the estimator selects by reward."""
        select = self.recipe.estimator.select
        if select is not None:
            batch, _, chosen = self.batch()
            self._keep("rejected", chosen, select(self.recipe.settings, batch))

    def drop_by_size(self) -> None:
        """Drop small groups, surplus rollouts, flat groups and surplus groups."""
        funnel, recipe = self.funnel, self.recipe
        group = funnel.candidates.group
        wanted = recipe.n_rollouts if recipe.min_rollouts is None else recipe.min_rollouts
        least = max(recipe.needs.min_group_size, wanted or 1)
        funnel.drop_trajectories("group_too_small", self._sizes()[group] < least)
        if recipe.n_rollouts is not None:
            funnel.drop_trajectories("over_rollouts", self._place_in_group() >= recipe.n_rollouts)
        if recipe.drop_flat_groups:
            batch, _, chosen = self.batch()
            self._keep("no_spread", chosen, has_spread(batch))
        if recipe.batch_size is not None:
            remaining = np.flatnonzero(self._sizes() > 0)
            place = np.full(len(funnel.candidates.prompt_uids), len(remaining))
            place[remaining[np.argsort(self._rank()[remaining], kind="stable")]] = np.arange(len(remaining))
            funnel.drop_trajectories("over_batch", place[group] >= recipe.batch_size)

    def batch(self) -> tuple[CreditInput, Ints, Ints]:
        """The estimator's input, its candidate rows, and its trajectories' numbers, in the plan's order."""
        funnel, candidates = self.funnel, self.funnel.candidates
        chosen, rows = np.flatnonzero(funnel.alive_trajectories()), np.flatnonzero(funnel.alive)
        if self.recipe.order != "fifo":
            rank = self._rank()
            chosen = chosen[np.argsort(rank[candidates.group[chosen]], kind="stable")]
            rows = rows[np.argsort(rank[candidates.group[candidates.trajectory[rows]]], kind="stable")]
        owner = candidates.group[chosen]
        starts = np.ones(len(owner), dtype=np.bool_)
        starts[1:] = owner[1:] != owner[:-1]
        number = np.full(len(candidates.group), -1, dtype=np.int64)
        number[chosen] = np.arange(len(chosen))
        taken = candidates.rows["n_response_tokens"].take(pa.array(rows))
        n_response = np.nan_to_num(taken.cast(pa.float64()).to_numpy()).astype(np.int64)
        base = CreditInput(
            group=np.cumsum(starts, dtype=np.int64) - 1,
            reward=self.score[chosen],
            step_trajectory=number[candidates.trajectory[rows]],
            step_reward=candidates.numbers("reward")[rows],
            trajectory_uids=_Texts(candidates.trajectory_uids.take(pa.array(chosen))),
            prompt_uids=_Texts(candidates.prompt_uids.take(pa.array(owner[starts]))),
            step_uids=_Texts(candidates.rows["step_uid"], rows),
            n_response=n_response,
            baseline=None if self.baseline is None else self.baseline[chosen],
            steps_reward=None if self.steps_reward is None else self.steps_reward[chosen],
            before=None if self.before is None else _renumbered(self.before[rows], rows),
        )
        extra: dict[str, Any] = with_fields(base, rows, self.fields, n_response)
        return replace(base, **extra), rows, chosen

    def _keep(self, reason: str, chosen: Ints, kept: Any) -> None:
        out = np.ones(len(self.funnel.candidates.group), dtype=np.bool_)
        out[chosen[kept]] = False
        self.funnel.drop_trajectories(reason, out)

    def _sizes(self) -> Ints:
        """Remaining trajectories of each group: int64 [g]."""
        group = self.funnel.candidates.group[self.funnel.alive_trajectories()]
        return np.bincount(group, minlength=len(self.funnel.candidates.prompt_uids)).astype(np.int64)

    def _place_in_group(self) -> Ints:
        """Place of each remaining trajectory in its group: int64 [m]; by arrival, or best, worst, second best, ..."""
        alive = self.funnel.alive_trajectories()
        group, sizes = self.funnel.candidates.group, self._sizes()
        first = np.cumsum(sizes) - sizes
        before: Ints = np.cumsum(alive) - alive
        place: Ints = before - first[group]
        if self.recipe.balance == "spread":
            index = np.flatnonzero(alive)
            order = index[np.lexsort((index, -self.score[index], group[index]))]
            from_best = np.arange(len(order)) - first[group[order]]
            from_worst = sizes[group[order]] - 1 - from_best
            place[order] = np.where(from_best <= from_worst, 2 * from_best, 2 * from_worst + 1)
        return place

    def _rank(self) -> Floats:
        """Sort key of the groups, least first: float64 [g]."""
        g = len(self.funnel.candidates.prompt_uids)
        place = np.arange(g, dtype=np.float64)
        if self.recipe.order == "newest":
            return -place
        if self.recipe.order == "fifo":
            return place
        alive = np.flatnonzero(self.funnel.alive_trajectories())
        owner, score = self.funnel.candidates.group[alive], np.nan_to_num(self.score[alive])
        n = np.maximum(np.bincount(owner, minlength=g), 1)
        mean = np.bincount(owner, weights=score, minlength=g) / n
        if self.recipe.order == "difficulty":
            distance: Floats = np.abs(mean - self.recipe.difficulty_target)
            return distance
        spread: Floats = -np.bincount(owner, weights=(score - mean[owner]) ** 2, minlength=g) / n
        return spread


def _renumbered(before: Ints, rows: Ints) -> Ints:
    """Candidate rows as places in ``rows``, -1 stays: int64 [s]."""
    place = np.zeros(int(rows.max(initial=0)) + 1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return np.where(before >= 0, place[before], -1)


class _Texts(Sequence[str]):
    """Rows of an Arrow text array read as a sequence: messages name few uids, so uids are converted at access."""

    def __init__(self, array: pa.Array | pa.ChunkedArray, rows: Ints | None = None) -> None:
        self.array = array
        self.rows = np.arange(len(array)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.array.take(pa.array(self.rows[index])).to_pylist()
        return self.array[int(self.rows[index])].as_py()


COPIED = ("step_uid", "trajectory_uid", "prompt_uid", "step_index", "token_source", "policy_version", "reward")
"""Columns of ``Plan.steps`` as the pool has them."""


def tables(
    funnel: Funnel, alive: Ints, chosen: Ints, batch: CreditInput, credit: Credit | None, recipe: Recipe
) -> tuple[pa.Table, pa.Table]:
    """``Plan.steps`` and ``Plan.trajectories``."""
    rows, places = funnel.candidates.rows, pa.array(alive)
    trajectory = batch.step_trajectory
    first = np.searchsorted(trajectory, np.arange(len(chosen)))
    n_steps = np.diff(np.append(first, len(trajectory)))

    def tokens_of(name: str) -> Ints:
        return pc.fill_null(rows[name].take(places).cast(pa.int64()), 0).to_numpy()  # type: ignore[no-any-return]

    n_prompt, n_response = tokens_of("n_prompt_tokens"), tokens_of("n_response_tokens")
    versions = rows["policy_version"].take(places).cast(pa.float64()).to_numpy()

    def per_trajectory(values: Any, how: np.ufunc) -> Any:
        return how.reduceat(values, first) if len(first) else values[:0]

    nothing = np.full(len(trajectory), np.nan)
    advantage = nothing if credit is None else credit.step
    shared = None if credit is None else credit.trajectory
    trajectory_advantage = np.full(len(chosen), np.nan) if shared is None else shared
    columns = {
        **{name: as_text(rows[name].take(places).combine_chunks()) for name in COPIED},
        "trajectory_reward": nullable(batch.reward[trajectory]),
        "group": pa.array(batch.group[trajectory].astype(np.int32)),
        "trajectory": pa.array(trajectory.astype(np.int32)),
        "n_prompt_tokens": pa.array(n_prompt),
        "n_response_tokens": pa.array(n_response),
        "advantage": nullable(advantage),
        "reward_share": nullable(step_rewards(batch)),
        "return": nullable(nothing if credit is None or credit.step_return is None else credit.step_return),
    }
    if credit is not None and credit.token is not None:
        columns["token_advantages"] = _ragged(credit.token, n_response)
        if credit.token_return is not None:
            columns["token_returns"] = _ragged(credit.token_return, n_response)
    labels = recipe.estimator.labels
    desirable = None if labels is None else labels(recipe.settings, batch)
    trajectories = {
        "trajectory_uid": funnel.candidates.trajectory_uids.take(pa.array(chosen)),
        "prompt_uid": columns["prompt_uid"].take(pa.array(first)),
        "group": pa.array(batch.group.astype(np.int32)),
        "first_step": pa.array(first),
        "n_steps": pa.array(n_steps),
        "n_tokens": pa.array(per_trajectory(n_prompt + n_response, np.add)),
        "n_response_tokens": pa.array(per_trajectory(n_response, np.add)),
        "reward": nullable(batch.reward),
        "advantage": nullable(trajectory_advantage),
        "policy_version_min": nullable(per_trajectory(versions, np.fmin)).cast(pa.int64()),
        "policy_version_max": nullable(per_trajectory(versions, np.fmax)).cast(pa.int64()),
        "desirable": pa.nulls(len(chosen), pa.bool_()) if desirable is None else pa.array(desirable),
    }
    return pa.table(columns), pa.table(trajectories)


def pair_table(recipe: Recipe, batch: CreditInput) -> pa.Table:
    """``Plan.pairs``."""
    assert recipe.estimator.pairs is not None
    pairs = recipe.estimator.pairs(recipe.settings, batch)

    def uids(index: Ints) -> pa.Array:
        return pa.array([batch.trajectory_uids[i] for i in index.tolist()], pa.string())

    return pa.table(
        {
            "prompt_uid": pa.array([batch.prompt_uids[g] for g in batch.group[pairs.chosen].tolist()], pa.string()),
            "chosen": pa.array(pairs.chosen),
            "rejected": pa.array(pairs.rejected),
            "chosen_uid": uids(pairs.chosen),
            "rejected_uid": uids(pairs.rejected),
            "margin": pa.array(pairs.margin),
        }
    )


def nullable(values: Any) -> pa.Array:
    """float64, NaN as null."""
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _ragged(values: Floats, lengths: Ints) -> pa.Array:
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.float32)))
