"""``plan(pool, view, recipe)``: which steps would be trained, and why others not. Pages, HTTP and exports use it.

Pure given the pool's state and deterministic: the same state gives the same ``hash``. No Python runs per step; the
work is columns (``candidates``), masks (``funnel``) and one estimator call.

Semantics, in the order of ``funnel.REASONS``: candidates are the steps of the recipe's channel that match the
view. Trajectories that other batches hold leave first. A step leaves when it is bad, not trainable, without trusted
ids, or too long; its trajectory stays while another step does. A trajectory leaves whole when it is bad, incomplete,
unscored (where rewards are needed), stale, or not selected. Staleness is the version in force
(``core.pool.state.policyversion``) minus the oldest among its steps still in. A group leaves when fewer trajectories
are left than ``n_rollouts`` or the estimator's minimum. Of the rest, the first ``n_rollouts`` trajectories of the
first ``batch_size`` groups are chosen, and advantages compare exactly those. Answers that people edited follow them in
plans of supervised recipes and of pairs (``core.batch.edits``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from core.batch.branches import drop_branches
from core.batch.candidates import candidates
from core.batch.edits import PlannedEdits, takes_edits, takes_only_edits
from core.batch.funnel import Excluded, Funnel, quoted
from core.batch.recipe import Recipe
from core.batch.result import Plan, PlanGroup, PlanTrajectory
from core.batch.selector import TrajectorySelector, pair_table, tables
from core.batch.source import PlanPool, PlanSource
from core.batch.versions import VersionSource
from core.credit.types import Bools, Credit, CreditInput
from core.errors import InvalidInput
from core.pool.store.tablehash import update_hash
from core.types import TokenSource, View

TEMPERATURE_EPS = 1e-6

__all__ = [
    "Plan",
    "PlanGroup",
    "PlanPool",
    "PlanSource",
    "PlanTrajectory",
    "count_plan",
    "estimate",
    "narrowed",
    "plan",
]


def plan(pool: PlanPool, view: View, recipe: Recipe, *, in_use: pa.Array | None = None) -> Plan:
    """Exclude and choose candidates, then assign credit.

    Args:
        pool: the pool.
        view: which steps are candidates; if the recipe names a saved view, steps must be in both.
        recipe: algorithm, channel, sizes, freshness, budget. If it names a dataset version,
            the candidates are the frozen ones, and the view is empty.
        in_use: string [k], trajectories of other batches, leased or consumed; they are excluded as ``in_use``.

    Raises:
        InvalidInput: a filter, expression, algorithm or option that doesn't exist; names the field.
        NotFound: no such saved view or dataset version.
    """
    if recipe.dataset is None:
        return _plan(pool.training, view if recipe.view is None else narrowed(view, recipe.view), recipe, in_use)
    source = VersionSource(pool, recipe.dataset)
    version_plan = _plan(source, _view_of_version(source, view, recipe), _plain(recipe), in_use)
    return replace(
        version_plan, recipe=recipe, hash=source.hash_of(version_plan.hash), dataset_version=source.plan_reference()
    )


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """The credit that a plan assigns, without its tables and its hash.

    Attributes:
        trajectory_uids: [n], the plan's trajectories, in its order.
        batch: the estimator's input, of these trajectories.
        credit: the advantages; None for supervised use.
        excluded, lacks: of the plan.
    """

    trajectory_uids: pa.StringArray
    batch: CreditInput
    credit: Credit | None
    excluded: list[Excluded]
    lacks: list[str]


def estimate(pool: PlanPool, view: View, recipe: Recipe) -> Estimate:
    """What ``plan(…)`` assigns to captured steps, for comparisons that lease and export nothing. Raises as plan."""
    if recipe.dataset is None:
        source: PlanSource = pool.training
        seen = view if recipe.view is None else narrowed(view, recipe.view)
    else:
        source = version = VersionSource(pool, recipe.dataset)
        seen = _view_of_version(version, view, recipe)
    remaining = _remaining(source, seen, _plain(recipe), None)
    batch, _, chosen = remaining.selector.batch()
    uids = remaining.funnel.candidates.trajectory_uids.take(pa.array(chosen))
    credit = recipe.estimator.advantages(recipe.options, batch)
    return Estimate(uids, batch, credit, remaining.excluded, remaining.lacks)


def narrowed(view: View, name: str) -> View:
    """The view restricted to the steps of a saved view."""
    named = view.filters.get("saved_view")
    names = [named] if isinstance(named, str) else list(named or ())
    if name in names:
        return view
    return View({**view.filters, "saved_view": [*names, name] if names else name}, view.where)


def _plain(recipe: Recipe) -> Recipe:
    """The recipe without the dataset version, which has become the source."""
    return recipe if recipe.dataset is None else recipe.model_copy(update={"dataset": None})


def _view_of_version(source: VersionSource, view: View, recipe: Recipe) -> View:
    """The view that was frozen. InvalidInput for a view or recipe that would narrow it."""
    narrowing = View({name: value for name, value in view.filters.items() if value is not None}, view.where)
    if recipe.view is not None or narrowing not in (View(), source.view):
        raise InvalidInput(
            "A dataset version is trained on as it was frozen; a view can't narrow it.",
            field="view",
            hint="Freeze the narrower view under another name.",
        )
    return source.view


def count_plan(pool: PlanPool, view: View, recipe: Recipe) -> dict[str, int]:
    """``plan(…).counts`` without advantages, tables or a hash: a sixth of the work on a large pool. Raises as plan."""
    if recipe.dataset is not None:
        return plan(pool, view, recipe).counts
    remaining = _remaining(pool.training, view if recipe.view is None else narrowed(view, recipe.view), recipe, None)
    funnel = remaining.funnel
    n_prompt, n_response = (
        int(funnel.candidates.numbers(name)[funnel.alive].sum()) for name in ("n_prompt_tokens", "n_response_tokens")
    )
    if remaining.edits is not None:
        more_prompt, more_response = remaining.edits.n_tokens()
        n_prompt, n_response = n_prompt + more_prompt, n_response + more_response
    _, n_groups, n_trajectories, n_steps = remaining.stages[-1]
    return {
        "n_groups": n_groups,
        "n_trajectories": n_trajectories,
        "n_steps": n_steps,
        "n_tokens": n_prompt + n_response,
        "n_loss_tokens": n_response,
    }


@dataclass(frozen=True, slots=True)
class _Remaining:
    """The remaining candidates, the policy version that staleness counts from, messages about missing fields, and the
    edited answers among the candidates (None: there are none, or the recipe takes none).
    """

    funnel: Funnel
    selector: TrajectorySelector
    version: int | None
    lacks: list[str]
    edits: PlannedEdits | None

    @property
    def stages(self) -> list[tuple[str, int, int, int]]:
        """``Plan.remaining``."""
        if self.edits is None:
            return self.funnel.remaining
        more = self.edits.counts_before()
        stages = [
            (reason, groups + more[0], trajectories + more[1], steps + more[2])
            for reason, groups, trajectories, steps in self.funnel.remaining
        ]
        return [*stages, *self.edits.stages(*self.funnel.remaining[-1][1:])]

    @property
    def excluded(self) -> list[Excluded]:
        """``Plan.excluded``."""
        return self.funnel.excluded if self.edits is None else [*self.funnel.excluded, *self.edits.excluded]


def _remaining(source: PlanSource, view: View, recipe: Recipe, in_use: pa.Array | None) -> _Remaining:
    rows = source.plan_rows(view, channel=recipe.channel)
    if recipe.rewards is not None:
        rows = _with_rewards(rows, source.trajectory_rewards(recipe.rewards, channel=recipe.channel))
    steps = candidates(rows)
    funnel = Funnel.start(steps, view, recipe.channel)
    if in_use is not None:
        funnel.drop_trajectories("in_use", pc.is_in(steps.trajectory_uids, in_use).to_numpy(zero_copy_only=False))
    edits = _take_edits(source, funnel, recipe, in_use)
    _drop_by_label_and_state(funnel, recipe)
    if recipe.temperature is not None:
        _drop_by_temperature(source, funnel, recipe.temperature)
    drop_branches(source, funnel, recipe)
    version = None
    if recipe.max_staleness is not None:
        named = recipe.policy_version
        version = source.version_in_force(recipe.channel) if named is None else named
        _drop_stale(funnel, version, recipe.max_staleness)
    selector = TrajectorySelector(funnel, recipe)
    lacks = selector.drop_missing_fields(source)
    selector.drop_unselected()
    selector.drop_by_size()
    if edits is not None:
        edits.drop_over_batch(funnel.remaining[-1][1])
    return _Remaining(funnel, selector, version, lacks, edits)


def _take_edits(source: PlanSource, funnel: Funnel, recipe: Recipe, in_use: pa.Array | None) -> PlannedEdits | None:
    """The edited answers among the candidates; for targets, and where only edits count, captured steps leave."""
    if not takes_edits(recipe):
        return None
    edits = PlannedEdits.among(source.edits(), funnel.candidates.rows, recipe, funnel.base)
    if takes_only_edits(recipe):
        funnel.drop_steps("not_edited", np.ones(funnel.candidates.n_steps, dtype=np.bool_), "TRUE", "FALSE")
    if not edits.edits:
        return None
    if not edits.is_pairs:
        edited = np.zeros(funnel.candidates.n_steps, dtype=np.bool_)
        edited[edits.places] = True
        funnel.drop_named_steps("edited", edited)
    if in_use is not None:
        edits.drop_in_use(in_use)
    edits.drop_too_long()
    return edits


def _plan(source: PlanSource, view: View, recipe: Recipe, in_use: pa.Array | None) -> Plan:
    remaining = _remaining(source, view, recipe, in_use)
    funnel = remaining.funnel
    batch, rows, chosen = remaining.selector.batch()
    credit = recipe.estimator.advantages(recipe.options, batch)
    level = None if credit is None else credit.level
    steps, trajectories = tables(funnel, rows, chosen, batch, credit, recipe)
    pairs = None if recipe.estimator.pairs is None else pair_table(recipe, batch)
    if remaining.edits is not None:
        steps, trajectories, pairs = remaining.edits.appended(steps, trajectories, pairs)
        rows = np.concatenate([rows, remaining.edits.chosen_rows()])
    effective = _effective(funnel.candidates.rows, pa.array(rows))
    stages, excluded, version, lacks = remaining.stages, remaining.excluded, remaining.version, remaining.lacks
    # The candidates of ten million steps are gigabytes, and reading the hashes needs memory of its own.
    del remaining, funnel, batch, credit, rows
    request = {
        "view": {"filters": dict(view.filters), "where": view.where},
        "recipe": recipe.to_json(),
        "policy_version": version,
    }
    return Plan(
        view=view,
        recipe=recipe,
        hash=_content_hash(request, steps, _exported(source, effective)),
        policy_version=version,
        steps=steps,
        trajectories=trajectories,
        excluded=excluded,
        remaining=stages,
        reader=source,
        level=level,
        lacks=lacks,
        pairs=pairs,
    )


def _mask(values: pa.Array) -> Bools:
    mask: Bools = values.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _drop_by_label_and_state(funnel: Funnel, recipe: Recipe) -> None:
    candidates = funnel.candidates
    bad = frozenset({"bad"})
    funnel.drop_steps(
        "labelled_bad",
        candidates.is_in("quality", bad) | candidates.is_in("trajectory_quality", bad),
        "quality = 'bad' OR trajectory_quality = 'bad'",
        "(quality IS NULL OR quality <> 'bad') AND (trajectory_quality IS NULL OR trajectory_quality <> 'bad')",
    )
    if recipe.require_complete:
        funnel.drop_steps("incomplete", ~candidates.flags("complete"), "NOT complete", "complete")
    unscored = np.isnan(candidates.numbers("trajectory_reward"))
    if recipe.needs.rewards and recipe.rewards is None:
        funnel.drop_steps("unscored", unscored, "trajectory_reward IS NULL", "trajectory_reward IS NOT NULL")
    elif recipe.needs.rewards:
        funnel.drop_trajectories("unscored", unscored[candidates.first])
    if "uncertain" in candidates.rows.column_names and (uncertain := candidates.flags("uncertain")).any():
        doubted = "list_contains(findings, 'uncertain')"
        funnel.drop_steps(
            "uncertain",
            uncertain & ~candidates.flags("trainable"),
            f"NOT trainable AND {doubted}",
            f"(trainable OR NOT {doubted})",
        )
    funnel.drop_steps("not_trainable", ~candidates.flags("trainable"), "NOT trainable", "trainable")
    n_prompt, n_response = candidates.numbers("n_prompt_tokens"), candidates.numbers("n_response_tokens")
    without = "n_prompt_tokens IS NULL OR n_response_tokens IS NULL OR n_response_tokens = 0"
    with_ids = "n_prompt_tokens IS NOT NULL AND n_response_tokens > 0"
    lacking = np.isnan(n_prompt) | ~(n_response > 0)
    if TokenSource.NONE in recipe.trusted_sources:
        lacking &= ~candidates.is_in("token_source", frozenset({TokenSource.NONE}))
        without, with_ids = f"({without}) AND token_source <> 'none'", f"({with_ids}) OR token_source = 'none'"
    funnel.drop_steps("no_tokens", lacking, without, with_ids)
    trusted = ", ".join(quoted(name) for name in sorted(recipe.trusted_sources))
    funnel.drop_steps(
        "token_source",
        ~candidates.is_in("token_source", recipe.trusted_sources),
        f"token_source NOT IN ({trusted})",
        f"token_source IN ({trusted})",
    )
    funnel.drop_steps(
        "over_length",
        n_prompt + n_response > recipe.token_budget,
        f"n_prompt_tokens + n_response_tokens > {recipe.token_budget}",
        f"n_prompt_tokens + n_response_tokens <= {recipe.token_budget}",
    )

    for reason, column, limit in (
        ("prompt_too_long", "n_prompt_tokens", recipe.max_prompt_tokens),
        ("response_too_long", "n_response_tokens", recipe.max_response_tokens),
    ):
        if limit is not None:
            funnel.drop_steps(reason, candidates.numbers(column) > limit, f"{column} > {limit}", f"{column} <= {limit}")

    if recipe.loss == "last_step":
        funnel.drop_steps("not_last_step", ~candidates.flags("is_last"), "NOT is_last", "is_last")


def _with_rewards(rows: pa.Table, chosen: pa.Table) -> pa.Table:
    """The rows with these trajectories' rewards in place of the pool's effective ones; unknown for the others."""
    place = pc.index_in(rows["trajectory_uid"], value_set=chosen["trajectory_uid"].combine_chunks())
    rewards = chosen["reward"].combine_chunks().take(place)
    return rows.set_column(rows.column_names.index("trajectory_reward"), "trajectory_reward", rewards)


def _drop_by_temperature(source: PlanSource, funnel: Funnel, wanted: float) -> None:
    candidates = funnel.candidates
    alive = np.flatnonzero(funnel.alive)
    fields = source.step_fields(candidates.step_ids[alive], ["temperature"])
    sampled = np.full(candidates.n_steps, np.nan)
    sampled[alive] = fields["temperature"].cast(pa.float64()).to_numpy()
    funnel.drop_named_steps("temperature", ~(np.abs(sampled - wanted) < TEMPERATURE_EPS))


def _drop_stale(funnel: Funnel, current: int | None, max_staleness: int) -> None:
    candidates = funnel.candidates
    n = len(candidates.group)
    versions = candidates.numbers("policy_version")
    unknown = np.zeros(n, dtype=np.bool_)
    unknown[candidates.trajectory[funnel.alive & np.isnan(versions)]] = True
    funnel.drop_trajectories("version_unknown", unknown)
    oldest = np.full(n, np.inf)
    np.minimum.at(oldest, candidates.trajectory[funnel.alive], versions[funnel.alive])
    if current is not None:
        funnel.drop_trajectories("stale", current - oldest > max_staleness)


EFFECTIVE = ("is_last", "call_kind")
"""Columns of the candidates that exporters write and ``Plan.steps`` lacks."""


def _content_hash(request: Mapping[str, Any], steps: pa.Table, exported: pa.Table) -> str:
    """sha256 over the request and everything that affects a row of an export.

    Args:
        request: view, recipe and policy version.
        steps: ``Plan.steps``: order, labels, rewards, advantages, returns.
        exported: ``_exported`` of the same steps.
    """
    digest = hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS, default=str))
    for table in (steps, exported):
        update_hash(digest, table)
    return digest.hexdigest()


def _effective(rows: pa.Table, chosen: pa.Array) -> pa.Table:
    """``step_id`` of the chosen rows, and what exporters write of them as it is in force: ``EFFECTIVE`` where given."""
    return pa.table({name: rows[name].take(chosen) for name in ("step_id", *EFFECTIVE) if name in rows.column_names})


def _exported(source: PlanSource, effective: pa.Table) -> pa.Table:
    """What exporters write of the chosen rows beside ``Plan.steps``: ``_effective`` and the facts' hash."""
    facts = source.facts_hashes(effective["step_id"].to_numpy())
    return effective.drop_columns("step_id").append_column("facts", facts)
