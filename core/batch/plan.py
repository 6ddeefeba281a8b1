"""``plan(pool, view, recipe)``: what would be trained, what not and why. Pages, HTTP and exports read it.

Pure given the pool's state and deterministic: the same state gives the same ``hash``. No Python runs per step; the
work is columns (``candidates``), masks (``funnel``) and one estimator call.

Semantics, in the order of ``funnel.REASONS``: candidates are the steps of the recipe's channel that match the
view. Trajectories that other batches hold leave first. A step leaves when it is bad, not trainable, without trusted
ids, or too long; its trajectory stays while another step does. A trajectory leaves whole when it is bad, incomplete,
unscored (where rewards are needed), stale, or not selected. Staleness counts from the oldest version among its steps
still in. A group leaves when fewer trajectories are left than ``n_rollouts`` or the estimator's minimum. Of what is
left the first ``n_rollouts`` trajectories of the first ``batch_size`` groups are chosen, and advantages compare
exactly those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from core.batch.candidates import Candidates, candidates
from core.batch.choose import Chooser, pair_table, tables
from core.batch.funnel import Funnel, quoted
from core.batch.layout import TokenReader
from core.batch.recipe import Recipe
from core.batch.result import Plan, PlanGroup, PlanTrajectory
from core.batch.versions import VersionSource, VersionStore
from core.credit.types import Bools
from core.errors import InvalidInput
from core.types import PolicyEvent, PolicyEventKind, View

TEMPERATURE_EPS = 1e-6

__all__ = ["Plan", "PlanGroup", "PlanSource", "PlanTrajectory", "count_plan", "narrowed", "plan"]


class PlanSource(TokenReader, Protocol):
    """What a plan reads of the pool."""

    def plan_rows(self, view: View, *, channel: str) -> pa.Table:
        """One row per candidate step in plan order, at least ``candidates.COLUMNS``."""
        ...

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """Producers' fields of these steps, for estimators that need them."""
        ...

    def policy_events(self) -> Sequence[PolicyEvent]:
        """What trainers reported, oldest first."""
        ...

    def trajectory_rewards(self, policy: Any, *, channel: str) -> pa.Table:
        """(trajectory_uid, reward) by a reward policy (``core.pool.rewards.Spec``) of what is scored by it."""
        ...

    def step_values(self, step_uids: Any, model: str) -> pa.Array:
        """A critic's stored values of these steps, float64 [n], null where it gave none."""
        ...


def plan(pool: PlanSource, view: View, recipe: Recipe, *, in_use: pa.Array | None = None) -> Plan:
    """Choose, exclude, assign credit.

    Args:
        pool: the pool.
        view: which steps are candidates; of a recipe's saved view, those of them that it also has.
        recipe: algorithm, channel, sizes, freshness, budget. One that names a dataset version is about that, as it was
            frozen, and the view is empty.
        in_use: string [k], trajectories that other batches hold or used up; they leave as ``in_use``.

    Raises:
        InvalidInput: a filter, expression, algorithm or option that doesn't exist; names the field.
        NotFound: a saved view or a dataset version that there isn't.
    """
    if recipe.dataset is not None:
        return _plan_of_version(VersionSource(cast(VersionStore, pool), recipe.dataset), view, recipe, in_use)
    return _plan(pool, view if recipe.view is None else narrowed(view, recipe.view), recipe, in_use)


def narrowed(view: View, name: str) -> View:
    """Those steps of a view that a saved view also has."""
    named = view.filters.get("saved_view")
    names = [named] if isinstance(named, str) else list(named or ())
    if name in names:
        return view
    return View({**view.filters, "saved_view": [*names, name] if names else name}, view.where)


def _plan_of_version(source: VersionSource, view: View, recipe: Recipe, in_use: pa.Array | None) -> Plan:
    asked = View({name: value for name, value in view.filters.items() if value is not None}, view.where)
    if recipe.view is not None or asked not in (View(), source.view):
        raise InvalidInput(
            "A dataset version is trained on as it was frozen; a view can't narrow it.",
            field="view",
            hint="Freeze the narrower view under another name.",
        )
    plain = recipe.model_copy(update={"dataset": None})
    made = _plan(source, source.view, plain, in_use)
    return replace(made, recipe=recipe, hash=source.hash_of(made.hash), dataset_version=source.about())


def count_plan(pool: PlanSource, view: View, recipe: Recipe) -> dict[str, int]:
    """``plan(…).counts`` without advantages, tables or a hash: a sixth of the work on a large pool. Raises as plan."""
    if recipe.dataset is not None:
        return plan(pool, view, recipe).counts
    funnel = _left(pool, view if recipe.view is None else narrowed(view, recipe.view), recipe, None).funnel
    n_prompt, n_response = (
        funnel.found.numbers(name)[funnel.alive] for name in ("n_prompt_tokens", "n_response_tokens")
    )
    _, n_groups, n_trajectories, n_steps = funnel.remaining[-1]
    return {
        "n_groups": n_groups,
        "n_trajectories": n_trajectories,
        "n_steps": n_steps,
        "n_tokens": int(n_prompt.sum() + n_response.sum()),
        "n_loss_tokens": int(n_response.sum()),
    }


@dataclass(frozen=True, slots=True)
class _Left:
    """What no reason took out, the policy version that staleness counted from, and which step lacks what."""

    funnel: Funnel
    chooser: Chooser
    version: int | None
    lacks: list[str]


def _left(pool: PlanSource, view: View, recipe: Recipe, in_use: pa.Array | None) -> _Left:
    rows = pool.plan_rows(view, channel=recipe.channel)
    if recipe.rewards is not None:
        rows = _with_rewards(rows, pool.trajectory_rewards(recipe.rewards, channel=recipe.channel))
    found = candidates(rows)
    funnel = Funnel.start(found, view, recipe.channel)
    if in_use is not None:
        funnel.drop_trajectories("in_use", pc.is_in(found.trajectory_uids, in_use).to_numpy(zero_copy_only=False))
    _drop_by_label_and_state(funnel, recipe)
    if recipe.temperature is not None:
        _drop_by_temperature(pool, funnel, recipe.temperature)
    version = None
    if recipe.max_staleness is not None:
        version = _current_version(pool, found, recipe)
        _drop_stale(funnel, version, recipe.max_staleness)
    chooser = Chooser(funnel, recipe)
    lacks = chooser.drop_what_lacks(pool)
    chooser.drop_unselected()
    chooser.drop_by_size()
    return _Left(funnel, chooser, version, lacks)


def _plan(pool: PlanSource, view: View, recipe: Recipe, in_use: pa.Array | None) -> Plan:
    left = _left(pool, view, recipe, in_use)
    funnel = left.funnel
    batch, rows, chosen = left.chooser.batch()
    credit = recipe.estimator.advantages(recipe.options, batch)
    steps, trajectories = tables(funnel, rows, chosen, batch, credit, recipe)
    return Plan(
        view=view,
        recipe=recipe,
        hash=_content_hash(view, recipe, left.version, steps),
        policy_version=left.version,
        steps=steps,
        trajectories=trajectories,
        excluded=funnel.excluded,
        remaining=funnel.remaining,
        reader=pool,
        level=None if credit is None else credit.level,
        lacks=left.lacks,
        pairs=None if recipe.estimator.pairs is None else pair_table(recipe, batch),
    )


def _mask(values: pa.Array) -> Bools:
    mask: Bools = values.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


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
    unscored = np.isnan(found.numbers("trajectory_reward"))
    if recipe.needs.rewards and recipe.rewards is None:
        funnel.drop_steps("unscored", unscored, "trajectory_reward IS NULL", "trajectory_reward IS NOT NULL")
    elif recipe.needs.rewards:
        funnel.drop_trajectories("unscored", unscored[found.first])
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

    for reason, column, most in (
        ("prompt_too_long", "n_prompt_tokens", recipe.max_prompt_tokens),
        ("response_too_long", "n_response_tokens", recipe.max_response_tokens),
    ):
        if most is not None:
            funnel.drop_steps(reason, found.numbers(column) > most, f"{column} > {most}", f"{column} <= {most}")

    if recipe.loss == "last_step":
        funnel.drop_steps("not_last_step", ~found.flags("is_last"), "NOT is_last", "is_last")


def _with_rewards(rows: pa.Table, chosen: pa.Table) -> pa.Table:
    """The rows with these trajectories' rewards in place of the pool's effective ones; unknown for the others."""
    place = pc.index_in(rows["trajectory_uid"], value_set=chosen["trajectory_uid"].combine_chunks())
    rewards = chosen["reward"].combine_chunks().take(place)
    return rows.set_column(rows.column_names.index("trajectory_reward"), "trajectory_reward", rewards)


def _drop_by_temperature(pool: PlanSource, funnel: Funnel, wanted: float) -> None:
    found = funnel.found
    alive = np.flatnonzero(funnel.alive)
    told = pool.credit_fields(found.rows["step_uid"].take(pa.array(alive)).combine_chunks(), ["temperature"])
    sampled = np.full(found.n_steps, np.nan)
    sampled[alive] = told["temperature"].cast(pa.float64()).to_numpy()
    funnel.drop_named_steps("temperature", ~(np.abs(sampled - wanted) < TEMPERATURE_EPS))


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
    if "token_advantages" in steps.column_names:
        digest.update(steps["token_advantages"].combine_chunks().flatten().to_numpy().tobytes())
    return digest.hexdigest()
