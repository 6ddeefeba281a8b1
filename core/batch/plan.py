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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa

from core.batch.candidates import Candidates, candidates
from core.batch.funnel import Excluded, Funnel, quoted
from core.batch.layout import PlanLayout, TokenReader, lay_out
from core.batch.recipe import Recipe
from core.credit import Credit, CreditInput
from core.credit.base import Bools, Ints
from core.types import PolicyEvent, PolicyEventKind, View

LAYOUT_TOKENS_MAX = 200_000_000
"""Above this, ``totals`` leaves the packed count unknown; ``Plan.layout`` still computes it when asked."""


class PlanSource(TokenReader, Protocol):
    """What a plan reads of the pool."""

    def plan_rows(self, view: View, *, channel: str) -> pa.Table:
        """One row per candidate step in plan order, at least ``candidates.COLUMNS``."""
        ...

    def policy_events(self) -> Sequence[PolicyEvent]:
        """What trainers reported, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class PlanTrajectory:
    """One chosen trajectory. ``advantage`` is None for supervised use and where it differs by step."""

    trajectory_uid: str
    step_uids: list[str]
    reward: float | None
    advantage: float | None
    n_tokens: int
    n_response_tokens: int
    policy_version_min: int | None
    policy_version_max: int | None


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """One chosen prompt group."""

    prompt_uid: str
    trajectories: list[PlanTrajectory]


@dataclass(frozen=True, eq=False)
class Plan:
    """The result of view + recipe.

    Attributes:
        view, recipe: what was asked.
        hash: sha256 of recipe, view, chosen steps, rewards and advantages.
        policy_version: what staleness counted from; None when unknown or not asked for.
        steps: chosen steps in plan order: step_uid, trajectory_uid, prompt_uid, step_index, group, trajectory
            (numbers from 0), n_prompt_tokens, n_response_tokens, token_source, policy_version, reward,
            trajectory_reward, advantage (null: unassigned).
        trajectories: chosen trajectories in plan order: trajectory_uid, prompt_uid, group, first_step, n_steps,
            n_tokens, n_response_tokens, reward, advantage, policy_version_min, policy_version_max.
        excluded: reasons that took something out.
        remaining: (reason, groups, trajectories, steps) left after each stage.
        reader: where token ids come from.
    """

    view: View
    recipe: Recipe
    hash: str
    policy_version: int | None
    steps: pa.Table
    trajectories: pa.Table
    excluded: list[Excluded]
    remaining: list[tuple[str, int, int, int]]
    reader: TokenReader

    @property
    def uid(self) -> str:
        """Short name made of the hash."""
        return f"plan-{self.hash[:16]}"

    @cached_property
    def step_uids(self) -> list[str]:
        """Chosen steps in plan order."""
        uids: list[str] = self.steps["step_uid"].to_pylist()
        return uids

    @cached_property
    def lengths(self) -> Ints:
        """Tokens (prompt and response) of each chosen step: int64 [n]."""
        n_prompt: Ints = self.steps["n_prompt_tokens"].to_numpy()
        n_response: Ints = self.steps["n_response_tokens"].to_numpy()
        return n_prompt.astype(np.int64) + n_response

    @cached_property
    def layout(self) -> PlanLayout:
        """Packed rows under the recipe's token budget; reads every token of the plan once."""
        group = self.steps["group"].to_numpy().astype(np.int64)
        return lay_out(self.reader, self.step_uids, group, self.lengths, self.recipe.token_budget)

    @property
    def n_groups(self) -> int:
        """Chosen groups."""
        return self.remaining[-1][1]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Groups, trajectories, steps, tokens, tokens in the loss: known without reading a token."""
        return {
            "n_groups": self.n_groups,
            "n_trajectories": len(self.trajectories),
            "n_steps": len(self.steps),
            "n_tokens": int(self.lengths.sum()),
            "n_loss_tokens": int(self.steps["n_response_tokens"].to_numpy().sum()),
        }

    @cached_property
    def totals(self) -> dict[str, Any]:
        """``counts`` and packing; ``n_packed_tokens`` and ``token_ratio`` are None above ``LAYOUT_TOKENS_MAX``."""
        packed = self.layout if self.counts["n_tokens"] <= LAYOUT_TOKENS_MAX else None
        return {
            **self.counts,
            "n_packed_tokens": packed.n_packed_tokens if packed else None,
            "token_ratio": packed.token_ratio if packed else None,
        }

    @cached_property
    def groups(self) -> list[PlanGroup]:
        """Chosen groups as objects, in plan order."""
        groups: list[PlanGroup] = []
        last = -1
        uids = self.step_uids
        for row in self.trajectories.to_pylist():
            if row["group"] != last:
                groups.append(PlanGroup(row["prompt_uid"], []))
                last = row["group"]
            steps = uids[row["first_step"] : row["first_step"] + row["n_steps"]]
            groups[-1].trajectories.append(
                PlanTrajectory(
                    trajectory_uid=row["trajectory_uid"],
                    step_uids=steps,
                    reward=row["reward"],
                    advantage=row["advantage"],
                    n_tokens=row["n_tokens"],
                    n_response_tokens=row["n_response_tokens"],
                    policy_version_min=row["policy_version_min"],
                    policy_version_max=row["policy_version_max"],
                )
            )
        return groups

    def funnel_json(self) -> list[dict[str, Any]]:
        """What is left after each stage, candidates first."""
        names = ("after", "n_groups", "n_trajectories", "n_steps")
        return [dict(zip(names, row, strict=True)) for row in self.remaining]

    def view_json(self) -> dict[str, Any]:
        """The view as JSON values."""
        return {"filters": dict(self.view.filters), "where": self.view.where}

    def to_json(self) -> dict[str, Any]:
        """The shape of ``POST plans``, and more: uid, hash, view, recipe, funnel, layout statistics."""
        totals = self.totals
        return {
            "uid": self.uid,
            "hash": self.hash,
            "view": self.view_json(),
            "recipe": self.recipe.to_json(),
            "policy_version": self.policy_version,
            "totals": totals,
            "groups": [
                {
                    "prompt_uid": group.prompt_uid,
                    "trajectories": [
                        {
                            "trajectory_uid": one.trajectory_uid,
                            "step_uids": one.step_uids,
                            "reward": one.reward,
                            "advantage": one.advantage,
                            "n_tokens": one.n_tokens,
                            "n_response_tokens": one.n_response_tokens,
                            "policy_version_min": one.policy_version_min,
                            "policy_version_max": one.policy_version_max,
                        }
                        for one in group.trajectories
                    ],
                }
                for group in self.groups
            ],
            "excluded": [reason.to_json() for reason in self.excluded],
            "funnel": self.funnel_json(),
            "layout": None if totals["n_packed_tokens"] is None else self.layout.to_json(),
        }


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
